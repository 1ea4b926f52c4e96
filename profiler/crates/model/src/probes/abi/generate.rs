//! Makes a C program of a header that prints where parameters are, and runs it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

/// The headers of a runtime.
#[derive(Clone, Copy, Debug)]
pub(super) struct Headers {
    /// What is included.
    pub(super) include: &'static [&'static str],
    /// Flags of the compiler.
    pub(super) flags: &'static [&'static str],
    /// Where packages put it.
    pub(super) folder: &'static str,
}

/// A parameter as declared.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Declared {
    /// Its type, as it can stand before a variable's name.
    ty: String,
    name: String,
}

/// A function that is called instead of each of the header's: it keeps its registers and
/// stack. `mark` fills a parameter with words that identify it.
const PROGRAM: &str = r#"
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#ifdef __cplusplus
extern "C" uint64_t kept[];
#endif
uint64_t kept[6 + 40];
__asm__(".text\n.globl keep\nkeep:\n"
    "lea kept(%rip), %rax\n"
    "mov %rdi, (%rax)\n mov %rsi, 8(%rax)\n mov %rdx, 16(%rax)\n"
    "mov %rcx, 24(%rax)\n mov %r8, 32(%rax)\n mov %r9, 40(%rax)\n"
    "xor %r10d, %r10d\n"
    "1: mov 8(%rsp,%r10,8), %r11\n mov %r11, 48(%rax,%r10,8)\n"
    "inc %r10\n cmp $40, %r10\n jne 1b\n xor %eax, %eax\n ret\n");
#ifdef __cplusplus
extern "C" int keep(...);
#else
extern int keep();
#endif
/* The last byte says which parameter it is, for those of one byte. */
static uint32_t word_of(uint32_t parameter, size_t i) {
    return 0x5a000000u + ((uint32_t)(i / 4) << 12) + 0x41 + parameter;
}
static void mark(void *p, size_t size, uint32_t parameter) {
    for (size_t i = 0; i < size; i += 4) {
        uint32_t word = word_of(parameter, i);
        memcpy((char *)p + i, &word, size - i < 4 ? size - i : 4);
    }
}
/* Whether the words of a parameter are in the halves from `start` on. */
static int here(size_t size, uint32_t parameter, int start) {
    for (size_t i = 0; i < size; i += 4) {
        uint32_t word = word_of(parameter, i);
        uint32_t mask = size - i < 4 ? (1u << 8 * (size - i)) - 1 : 0xffffffffu;
        int half = start + (int)(i / 4);
        if (half >= 92 || (start < 12 && half >= 12)) return 0;
        if (((uint32_t)(kept[half / 2] >> 32 * (half % 2)) & mask) != (word & mask)) return 0;
    }
    return 1;
}
static void find(const char *function, const char *name, size_t size, const char *type,
                 uint32_t parameter) {
    printf("param %s %s %zu %s", function, name, size, *type ? type : "-");
    int start = 0;
    while (start < 92 && !here(size, parameter, start)) start++;
    /* Elsewhere: a floating-point number, or more than is looked at. */
    if (start == 92) printf(" ?");
    for (int i = 0; start < 92 && i < (int)(size + 3) / 4; i++) {
        int slot = (start + i) / 2, half = (start + i) % 2;
        printf(" %s%d.%s", slot < 6 ? "arg" : "stack", slot < 6 ? slot : slot - 6,
                    half ? "hi" : "lo");
    }
    printf("\n");
}
"#;

impl Headers {
    /// The facts of the headers in `folder` about `functions`, as text for `Abi::parse`.
    pub(super) fn abi(&self, folder: &Path, functions: &[&str]) -> Result<String, String> {
        for header in self.include {
            if !folder.join(header).is_file() {
                return Err(format!("there is no {header} in {}", folder.display()));
            }
        }
        if cfg!(not(target_arch = "x86_64")) {
            return Err("the positions are those of x86-64".into());
        }
        let work = tempfile::tempdir().map_err(|e| e.to_string())?;
        let includes: String = self
            .include
            .iter()
            .map(|header| format!("#include <{header}>\n"))
            .collect();
        let source = work.path().join("headers.c");
        std::fs::write(&source, &includes).map_err(|e| e.to_string())?;
        let text = self.compiler(folder, &["-E", "-P"], &source, None)?;
        let header = Declarations::of(&text);
        let program = self.program(&header, &includes, functions);
        std::fs::write(&source, program).map_err(|e| e.to_string())?;
        let binary = work.path().join("say");
        self.compiler(folder, &["-O0", "-w"], &source, Some(&binary))?;
        run(&mut Command::new(&binary))
    }

    fn compiler(
        &self,
        folder: &Path,
        flags: &[&str],
        source: &Path,
        output: Option<&Path>,
    ) -> Result<String, String> {
        let mut command = Command::new("cc");
        command.args(flags).args(self.flags).arg("-I").arg(folder);
        command.arg(source);
        if let Some(output) = output {
            command.arg("-o").arg(output);
        }
        run(&mut command)
    }

    fn program(&self, header: &Declarations, includes: &str, functions: &[&str]) -> String {
        let mut structures = BTreeMap::new();
        let mut main = String::new();
        for function in functions {
            let Some(parameters) = header.functions.get(*function) else {
                continue;
            };
            let _ = writeln!(main, "printf(\"fn {function}\\n\");\n{{");
            let mut names = Vec::new();
            for (index, Declared { ty, .. }) in parameters.iter().enumerate() {
                let _ = writeln!(
                    main,
                    "{ty} v{index}; mark(&v{index}, sizeof v{index}, {index});"
                );
                names.push(format!("v{index}"));
            }
            let _ = writeln!(main, "keep({});", names.join(", "));
            for (index, Declared { ty, name }) in parameters.iter().enumerate() {
                let structure = match header.structure_of(ty) {
                    Some((name, structure)) => {
                        let star = if ty.contains('*') { "*" } else { "" };
                        structures.insert(name.to_owned(), structure);
                        format!("{star}{name}")
                    }
                    None => String::new(),
                };
                let _ = writeln!(
                    main,
                    "find(\"{function}\", \"{name}\", sizeof v{index}, \"{structure}\", {index});"
                );
            }
            main.push_str("}\n");
        }
        for (name, Structure { c_type, members }) in structures {
            for member in members {
                let _ = writeln!(
                    main,
                    "printf(\"member {name} {member} %zu %zu\\n\", offsetof({c_type}, {member}), \
                     sizeof((({c_type} *)0)->{member}));"
                );
            }
        }
        format!("{includes}{PROGRAM}int main(void) {{\n{main}return 0; }}\n")
    }
}

fn run(command: &mut Command) -> Result<String, String> {
    let output = command
        .output()
        .map_err(|error| format!("{:?}: {error}", command.get_program()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let first: Vec<_> = said.lines().take(20).collect();
        return Err(first.join("\n"));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The type that a type is, or points at.
fn target(ty: &str) -> String {
    let words = ty.replace('*', " ");
    let words: Vec<_> = words
        .split_whitespace()
        .filter(|word| !["const", "struct"].contains(word))
        .collect();
    words.join(" ")
}

/// The functions and structures that preprocessed text declares.
#[derive(Debug, Default)]
struct Declarations {
    functions: BTreeMap<String, Vec<Declared>>,
    /// By the name after `typedef struct {...}` and that before it.
    structures: BTreeMap<String, Structure>,
    /// Other names of types.
    aliases: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Structure {
    /// How C names it.
    c_type: String,
    members: Vec<String>,
}

impl Declarations {
    fn of(text: &str) -> Self {
        let mut all = Self::default();
        for statement in statements(&without_attributes(text)) {
            match statement.find('{') {
                Some(open) => all.structure(&statement, open),
                None => all.function(&statement),
            }
        }
        all
    }

    /// `typedef struct tag { ... } name` with plain members.
    fn structure(&mut self, statement: &str, open: usize) {
        let Some(close) = statement.rfind('}') else {
            return;
        };
        let head: Vec<_> = statement[..open].split_whitespace().collect();
        if !head.contains(&"struct") || head.contains(&"(") {
            return;
        }
        let members: Vec<_> = statements(&statement[open + 1..close])
            .filter(|member| !member.contains('{') && !member.contains(':'))
            .flat_map(|member| members(&member))
            .collect();
        let mut add = |name: &str, c_type: String| {
            let members = members.clone();
            if is_identifier(name) {
                let structure = Structure { c_type, members };
                self.structures.insert(name.to_owned(), structure);
            }
        };
        if let Some(tag) = head.last().filter(|word| **word != "struct") {
            add(tag, format!("struct {tag}"));
        }
        for name in statement[close + 1..].split(',').map(str::trim) {
            add(name, name.to_owned());
        }
    }

    /// The structure that a type is or points at, with its own name.
    fn structure_of(&self, ty: &str) -> Option<(&str, &Structure)> {
        let mut name = target(ty);
        while let Some(other) = self.aliases.get(&name) {
            name.clone_from(other);
        }
        let (name, structure) = self.structures.get_key_value(&name)?;
        Some((name, structure))
    }

    /// `typedef other name`, or with a structure's tag.
    fn alias(&mut self, statement: &str) {
        let words: Vec<_> = statement.split_whitespace().collect();
        let (["typedef", of, name] | ["typedef", "struct", of, name]) = words.as_slice() else {
            return;
        };
        if of != name && is_identifier(of) && is_identifier(name) {
            self.aliases.insert((*name).to_owned(), (*of).to_owned());
        }
    }

    /// `type name(parameters)`.
    fn function(&mut self, statement: &str) {
        let Some((head, rest)) = statement.split_once('(') else {
            return self.alias(statement);
        };
        let Some(list) = rest.trim_end().strip_suffix(')') else {
            return;
        };
        let name = head.split_whitespace().next_back().unwrap_or_default();
        let name = name.trim_start_matches('*');
        if head.contains("typedef") || !is_identifier(name) {
            return;
        }
        let parameters = split(list, ',')
            .filter(|text| !["", "void"].contains(&text.trim()))
            .enumerate()
            .map(|(index, text)| parameter(&text, index))
            .collect();
        self.functions.insert(name.to_owned(), parameters);
    }
}

/// Statements and definitions: what ends with `;` outside of braces.
fn statements(text: &str) -> impl Iterator<Item = String> {
    let text = text
        .replace("extern \"C\" {", "")
        .replace("extern \"C\"", "");
    let mut all = Vec::new();
    for part in split(&text, ';') {
        all.push(part.split_whitespace().collect::<Vec<_>>().join(" "));
    }
    all.into_iter()
}

/// Splits at a character outside of brackets.
fn split(text: &str, at: char) -> impl Iterator<Item = String> {
    let (mut depth, mut parts, mut part) = (0_i32, Vec::new(), String::new());
    for c in text.chars() {
        match c {
            '(' | '{' | '[' => depth += 1,
            // A bracket too many is the end of an `extern "C"`.
            ')' | '}' | ']' => depth = (depth - 1).max(0),
            _ => {}
        }
        if c == at && depth == 0 {
            parts.push(std::mem::take(&mut part));
        } else {
            part.push(c);
        }
    }
    parts.push(part);
    parts.into_iter()
}

fn without_attributes(statement: &str) -> String {
    let mut text = statement.to_owned();
    for word in ["__attribute__", "__asm__"] {
        while let Some(start) = text.find(word) {
            let mut depth = 0_i32;
            let end = text[start..].char_indices().find(|&(_, c)| {
                depth += i32::from(c == '(') - i32::from(c == ')');
                c == ')' && depth == 0
            });
            let end = end.map_or(text.len(), |(at, _)| start + at + 1);
            text.replace_range(start..end, " ");
        }
    }
    text
}

fn parameter(text: &str, index: usize) -> Declared {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    // Pointers to functions, and arrays, which are pointers too.
    if let Some((_, rest)) = text.split_once('(') {
        let inside = rest.split(')').next().unwrap_or_default();
        let name = inside.split('*').next_back().map(str::trim);
        let name = name.filter(|name| is_identifier(name));
        let name = name.map_or(format!("p{index}"), str::to_owned);
        return Declared {
            ty: "void *".into(),
            name,
        };
    }
    let (text, array) = match text.split_once('[') {
        Some((before, _)) => (before.trim().to_owned(), " *"),
        None => (text, ""),
    };
    let start = text
        .rfind(|c: char| !(c.is_alphanumeric() || c == '_'))
        .map_or(0, |at| at + 1);
    let (ty, name) = text.split_at(start);
    let unnamed = ["", "struct", "const", "const struct", "enum"].contains(&ty.trim())
        || ["", "int", "char", "long", "short", "unsigned"].contains(&name);
    let (ty, name) = match unnamed {
        true => (text.as_str(), format!("p{index}")),
        false => (ty, name.to_owned()),
    };
    let ty = ty.replace("restrict", "");
    // A constant of its own is filled all the same.
    let ty = match ty.contains('*') {
        true => ty.trim().trim_end_matches("const").to_owned(),
        false => ty.replace("const ", ""),
    };
    Declared {
        ty: format!("{}{array}", ty.trim()),
        name,
    }
}

/// The names in `unsigned int a, b[4]`.
fn members(text: &str) -> Vec<String> {
    if let Some((_, rest)) = text.split_once("(*") {
        let name = rest.split(')').next().unwrap_or_default().trim();
        return vec![name.to_owned()]
            .into_iter()
            .filter(|n| is_identifier(n))
            .collect();
    }
    split(text, ',')
        .filter_map(|part| {
            let part = part.split('[').next()?.trim();
            let word = part
                .rsplit(|c: char| !(c.is_alphanumeric() || c == '_'))
                .next()?;
            is_identifier(word).then(|| word.to_owned())
        })
        .collect()
}

fn is_identifier(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

#[test]
fn declarations_are_read() {
    let all = Declarations::of(
        "typedef struct _a_t { int x; const char *name[4]; void (*f)(int); } a_t;\n\
         typedef a_t b_t;\n\
         __attribute__((visibility(\"default\"))) int f(const a_t* p, unsigned int, a_t q[]) \
         __attribute__((nonnull(1, 2)));\nvoid g(void);",
    );
    for (name, c_type) in [("a_t", "a_t"), ("_a_t", "struct _a_t")] {
        let structure = &all.structures[name];
        assert_eq!(structure.members, ["x", "name", "f"]);
        assert_eq!(structure.c_type, c_type);
    }
    assert_eq!(all.structure_of("const b_t *").unwrap().0, "a_t");
    let declared = |ty: &str, name: &str| Declared {
        ty: ty.into(),
        name: name.into(),
    };
    assert_eq!(
        all.functions["f"],
        [
            declared("const a_t*", "p"),
            declared("unsigned int", "p1"),
            declared("a_t *", "q")
        ]
    );
    assert!(all.functions["g"].is_empty());
}
