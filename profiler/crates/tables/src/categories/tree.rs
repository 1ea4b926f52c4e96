//! The JSON of `categorize.py`: trees of the parts of names.
//!
//! `{"ignore_spaces": true, "direct": TREE, "reverse": TREE}`. A tree cuts `length`
//! characters off a name and goes on with the rest in `next`; `category` holds for all names
//! that come there, `next[""]` for those that end there. The second tree is of names read
//! backwards.

use super::{Categories, RuleKind};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Deepest tree that is written: one that JSON readers take, who stop at 128 levels.
const MAX_DEPTH: usize = 60;

/// Why a tree cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    /// It is no JSON.
    #[error("{0}")]
    NoJson(#[from] serde_json::Error),
    /// It is something else.
    #[error("not a JSON file of categories: {0}")]
    NoSchema(&'static str),
    /// Names are the beginnings of others too often.
    #[error("names that begin with each other are nested too deeply (limit: {MAX_DEPTH})")]
    TooDeep,
}

impl Categories {
    /// Reads the JSON.
    ///
    /// # Errors
    /// It is none, or none of categories.
    pub fn of_json(text: &str) -> Result<Self, TreeError> {
        let value: Value = serde_json::from_str(text)?;
        let given = |key| value.get(key);
        let ignores_blanks = given("ignore_spaces").and_then(Value::as_bool);
        let mut rules = Self {
            ignores_blanks: ignores_blanks
                .ok_or(TreeError::NoSchema("ignore_spaces is missing"))?,
            ..Self::default()
        };
        let mut has_some = false;
        for (key, is_reverse) in [("direct", false), ("reverse", true)] {
            if let Some(tree) = given(key) {
                has_some = true;
                let mut name = Vec::new();
                walk(tree, &mut name, is_reverse, &mut rules)?;
            }
        }
        match has_some {
            true => Ok(rules),
            false => Err(TreeError::NoSchema(
                "it has neither the key `direct` nor `reverse`",
            )),
        }
    }

    /// The JSON. A kind without rules has an empty tree.
    ///
    /// # Errors
    /// It would be too deep.
    pub fn to_json(&self) -> Result<Value, TreeError> {
        let chars = |text: &String| text.chars().collect::<Vec<char>>();
        let mut direct: Tags<'_> = Vec::new();
        for (rules, is_exact) in [(&self.prefixes, false), (&self.exact, true)] {
            let tags = rules.by_text.iter();
            direct.extend(tags.map(|(text, category)| (chars(text), &**category, is_exact)));
        }
        let reverse = self.suffixes.by_text.iter();
        let reverse = reverse.map(|(text, category)| {
            let mut text = chars(text);
            text.reverse();
            (text, &**category, false)
        });
        Ok(json!({
            "ignore_spaces": self.ignores_blanks,
            "direct": build(direct, 0)?,
            "reverse": build(reverse.collect(), 0)?,
        }))
    }
}

/// The rest of a name, its category, and whether it has to end there.
type Tags<'c> = Vec<(Vec<char>, &'c str, bool)>;

fn build(tags: Tags<'_>, depth: usize) -> Result<Value, TreeError> {
    if depth > MAX_DEPTH {
        return Err(TreeError::TooDeep);
    }
    let length = tags.iter().map(|tag| tag.0.len()).min().unwrap_or(1).max(1);
    let mut nodes: BTreeMap<String, Map<String, Value>> = BTreeMap::new();
    let mut longer: BTreeMap<String, Tags<'_>> = BTreeMap::new();
    for (mut key, category, is_exact) in tags {
        let rest = key.split_off(length.min(key.len()));
        let key = String::from_iter(key);
        if !rest.is_empty() {
            longer
                .entry(key)
                .or_default()
                .push((rest, category, is_exact));
            continue;
        }
        let node = nodes.entry(key).or_default();
        match is_exact {
            true => node.insert("next".to_owned(), json!({"": {"category": category}})),
            false => node.insert("category".to_owned(), json!(category)),
        };
    }
    for (key, tags) in longer {
        let node = nodes.entry(key).or_default();
        let ends = node.remove("next");
        if let Value::Object(mut tree) = build(tags, depth + 1)? {
            if let (Some(Value::Object(next)), Some(Value::Object(ends))) =
                (tree.get_mut("next"), ends)
            {
                next.extend(ends);
            }
            node.extend(tree);
        }
    }
    let next = nodes.into_iter().map(|(key, node)| (key, node.into()));
    Ok(json!({"length": length, "next": next.collect::<Map<_, _>>()}))
}

/// Takes the rules of a tree; `name`: what leads to it. As deep as the JSON, which has a
/// limit.
fn walk(
    node: &Value,
    name: &mut Vec<char>,
    is_reverse: bool,
    rules: &mut Categories,
) -> Result<(), TreeError> {
    let node = node.as_object().ok_or(TreeError::NoSchema(
        "`direct`, `reverse` or a key in `next` is not a JSON object",
    ))?;
    if let Some(category) = node.get("category") {
        let kind = match is_reverse {
            true => RuleKind::Ends,
            false => RuleKind::Starts,
        };
        rules.add(kind, &text(name, is_reverse), category_of(category)?);
    }
    let length = node.get("length").and_then(Value::as_u64);
    let next = node.get("next").and_then(Value::as_object);
    for (key, tree) in next.into_iter().flatten() {
        if key.is_empty() {
            let category = tree.get("category");
            let category =
                category.ok_or(TreeError::NoSchema("an end of a name has no category"))?;
            match is_reverse {
                // No file of categorize.py has such.
                true => rules.lost += 1,
                false => {
                    let text = text(name, is_reverse);
                    rules.add(RuleKind::Equals, &text, category_of(category)?);
                }
            }
        } else if length == Some(key.chars().count() as u64) {
            let before = name.len();
            name.extend(key.chars());
            walk(tree, name, is_reverse, rules)?;
            name.truncate(before);
        } else {
            rules.lost += 1;
        }
    }
    Ok(())
}

fn category_of(value: &Value) -> Result<&str, TreeError> {
    let text = value.as_str();
    text.ok_or(TreeError::NoSchema("a category is not a string"))
}

fn text(name: &[char], is_reverse: bool) -> String {
    match is_reverse {
        true => name.iter().rev().collect(),
        false => name.iter().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `categorize.py` writes of the same INI file.
    #[test]
    fn trees_are_those_of_the_script() {
        let ini = "[a if starts with]\ngemm\n[b if equals to]\ngemm_big\n[c if ends with]\n::x\n";
        let rules = Categories::of_ini(ini, true).unwrap();
        let theirs = r#"{"ignore_spaces":true,
            "direct":{"length":4,"next":{"gemm":{"category":"a","length":4,
                "next":{"_big":{"next":{"":{"category":"b"}}}}}}},
            "reverse":{"length":3,"next":{"x::":{"category":"c"}}}}"#;
        let value: Value = serde_json::from_str(theirs).unwrap();
        assert_eq!(rules.to_json().unwrap(), value);
        assert_eq!(Categories::of_json(theirs).unwrap(), rules);
    }

    #[test]
    fn rules_come_back_from_their_tree() {
        let mut rules = Categories::default();
        for (at, text) in ["a", "ab", "abc", "é", "éa", "xyz"].iter().enumerate() {
            rules.add(RuleKind::Starts, text, &format!("s{at}"));
            rules.add(RuleKind::Equals, text, &format!("e{at}"));
            rules.add(RuleKind::Ends, text, &format!("r{at}"));
        }
        let text = rules.to_json().unwrap().to_string();
        assert_eq!(Categories::of_json(&text).unwrap(), rules);
        let empty = Categories::default().to_json().unwrap().to_string();
        assert_eq!(Categories::of_json(&empty).unwrap(), Categories::default());
    }

    #[test]
    fn odd_trees_are_refused_or_counted() {
        for text in [
            "",
            "[]",
            r#"{"direct":{}}"#,
            r#"{"ignore_spaces":true}"#,
            r#"{"ignore_spaces":true,"direct":[]}"#,
            r#"{"ignore_spaces":true,"direct":{"next":{"":{}}}}"#,
            r#"{"ignore_spaces":true,"direct":{"length":1,"next":{"a":{"category":1}}}}"#,
        ] {
            assert!(Categories::of_json(text).is_err(), "{text}");
        }
        let lost = r#"{"ignore_spaces":true,"direct":{"length":2,"next":{"a":{"category":"x"}}},
            "reverse":{"next":{"":{"category":"x"}}}}"#;
        let rules = Categories::of_json(lost).unwrap();
        assert_eq!((rules.len(), rules.lost), (0, 2));
        let mut deep = Categories::default();
        (1..100).for_each(|n| deep.add(RuleKind::Starts, &"a".repeat(n), "x"));
        assert!(matches!(deep.to_json(), Err(TreeError::TooDeep)));
    }
}
