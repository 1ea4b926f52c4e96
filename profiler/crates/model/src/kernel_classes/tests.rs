use super::*;
use std::collections::BTreeSet;

/// Kernels that projects have: class, project, path in its repository, name as in a trace.
const NAMES: &str = include_str!("names.tsv");

fn names() -> impl Iterator<Item = (KernelClass, &'static str)> {
    NAMES.lines().map(|line| {
        let fields: Vec<_> = line.split('\t').collect();
        let [class, _project, _path, name] = fields.as_slice() else {
            panic!("{line:?} has not four fields");
        };
        let class = KernelClass::NAMED.iter().find(|(text, _)| text == class);
        (class.unwrap().1, *name)
    })
}

#[test]
fn kernels_of_projects_have_the_class_of_what_they_do() {
    let classes = KernelClasses::default();
    for (class, name) in names() {
        assert_eq!(classes.of(name), class, "{name}");
    }
    let computing = names().filter(|(class, _)| *class == KernelClass::Compute);
    assert!(2 * computing.count() >= names().count());
}

#[test]
fn each_built_in_pattern_has_a_kernel_that_needs_it() {
    let classes = KernelClasses::default();
    let paths: Vec<_> = names().map(|(_, name)| function_path(name)).collect();
    for pattern in &classes.0.patterns {
        let fits = |path: &String| glob::matches(&pattern.glob, path);
        assert!(paths.iter().any(fits), "{}", pattern.glob);
    }
    let all: BTreeSet<_> = classes.0.patterns.iter().map(|p| &p.glob).collect();
    assert_eq!(all.len(), classes.0.patterns.len());
}

#[test]
fn names_are_compared_without_types_and_parameters() {
    for (name, path) in [
        ("f", "::f::"),
        ("void a::f<b::g<int>, 4>(a::h*)", "::a::f::"),
        ("void (anonymous namespace)::F<x>(y)", "::void::f::"),
        (
            "a::b(int)::{lambda(c)#1}::operator()(c) const",
            "::a::b::operator::",
        ),
        ("typeinfo name for a::f<int>", "::a::f::"),
        (
            "std::enable_if<true, int>::type a::f<int>(int) [clone .kd]",
            "::a::f::",
        ),
        ("_ZN1a1fILi8EEEvPi.kd", "::a::f::"),
        ("f.kd", "::f::"),
        ("", "::"),
        (")>]}::<((", "::"),
    ] {
        assert_eq!(function_path(name), path, "{name}");
    }
}

/// A pattern begins and ends where a part of a name does.
#[test]
fn patterns_fit_whole_parts_of_names() {
    for (pattern, name, fits) in [
        ("fun", "a::fun<int>(b)", true),
        ("fun", "my_fun", false),
        ("fun", "fun_1", false),
        ("fun", "a::other<fun>(fun)", false),
        ("FUN_*", "a::fun_1", true),
        ("fun_?", "fun_12", false),
        ("a::fun", "b::a::fun", true),
        ("a::fun", "b_a::fun", false),
        ("abc::*", "abc::d::fun", true),
        ("abc::*", "abc", false),
        ("*_fun_x", "my_fun_x", true),
    ] {
        let mut classes = KernelClasses::default();
        let row = format!("[[kernel]]\nclass = \"copy\"\nnames = [\"{pattern}\"]\n");
        classes.add("t", &row).unwrap();
        let class = match fits {
            true => KernelClass::Copy,
            false => KernelClass::Compute,
        };
        assert_eq!(classes.of(name), class, "{pattern} {name}");
    }
}

#[test]
fn rows_that_are_added_come_first_and_in_a_file_the_first_does() {
    let mut classes = KernelClasses::default();
    let built_in = classes.clone();
    let name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL";
    let table = "[[kernel]]\nclass = \"memory-set\"\nnames = [\"ncclDevKernel_*\"]\n\
                 [[kernel]]\nsource = \"mine\"\nclass = \"copy\"\nnames = [\"nccl*\"]\n";
    classes.add("a", table).unwrap();
    assert_eq!(classes.of(name), KernelClass::MemorySet);
    assert_eq!(classes.of("ncclKernel_x"), KernelClass::Copy);
    classes
        .add("b", &table.replace("memory-set", "compute"))
        .unwrap();
    assert_eq!(classes.of(name), KernelClass::Compute);
    assert_eq!(built_in.of(name), KernelClass::Communication);
}

#[test]
fn mistakes_have_their_place_and_what_is_allowed() {
    let mistakes = |text: &str| {
        let mut classes = KernelClasses::default();
        let errors = classes.add("my.toml", text).unwrap_err();
        let lines: Vec<_> = errors.iter().map(ToString::to_string).collect();
        lines.join("\n")
    };
    let text = mistakes(
        "[[kernel]]\nclass = \"comms\"\nnames = [\"f<int>\", \"**\"]\n[[kernel]]\nkind = \"copy\"\n",
    );
    for part in [
        "my.toml:2:9: unknown class `comms`; known: compute, communication, message, copy, \
         memory-set",
        "my.toml:3:10: `<` cannot be in a name of a function",
        "my.toml:3:20: a name must have at least 3 letters or digits",
        "my.toml:4:1: `class` is missing",
        "my.toml:4:1: `names` is missing",
        "my.toml:5:1: unknown key `kind`; known: class, source, names",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    assert!(mistakes("").contains("at least one [[kernel]]"));
    assert!(mistakes("class = 1").contains("my.toml:1:1: unknown key `class`; known: kernel"));
}
