//! The recorded labels of a process.

use super::{MAX_KEY, MAX_LABELS, MAX_VALUE};
use std::{cell::RefCell, collections::VecDeque, rc::Rc};

/// Most sets of labels that are looked through for one like another.
const MOST_SHARED: usize = 16;

/// The recorded labels of a program in a process. They may become known after the
/// process was sampled first: who holds the set sees them then.
#[derive(Debug, Default)]
pub struct LabelSet {
    /// Number of the set; 0: of no process.
    pub id: u64,
    /// Forks share them until one has others.
    labels: RefCell<Rc<Vec<(String, String)>>>,
}

impl LabelSet {
    /// A set of its own that begins with what is in this one.
    pub(crate) fn renewed(&self, id: u64) -> Self {
        Self {
            id,
            labels: RefCell::new(
                self.labels
                    .try_borrow()
                    .map_or_else(|_| Rc::default(), |labels| Rc::clone(&labels)),
            ),
        }
    }

    /// Adds labels; those of the same key are replaced.
    pub fn add(&self, labels: &[(String, String)]) {
        if let Ok(mut known) = self.labels.try_borrow_mut() {
            let is_new = |label: &&(String, String)| !known.contains(label);
            let new: Vec<_> = labels.iter().filter(is_new).collect();
            for (key, value) in new {
                add_label(Rc::make_mut(&mut known), key, value);
            }
        }
    }

    /// Removes the label of a key.
    pub(crate) fn remove(&self, key: &str) {
        if let Ok(mut known) = self.labels.try_borrow_mut()
            && known.iter().any(|(known, _)| known == key)
        {
            Rc::make_mut(&mut known).retain(|(known, _)| known != key);
        }
    }

    /// Takes equal labels of another process in place of its own, or is what others take.
    /// Most processes of a machine have one of a few sets.
    pub(crate) fn share(&self, known: &mut VecDeque<Rc<Vec<(String, String)>>>) {
        let Ok(mut own) = self.labels.try_borrow_mut() else {
            return;
        };
        match known.iter().find(|known| ***known == **own) {
            Some(same) => *own = Rc::clone(same),
            None => {
                known.truncate(MOST_SHARED - 1);
                known.push_front(Rc::clone(&own));
            }
        }
    }

    /// All labels, in the order of their keys.
    pub fn to_vec(&self) -> Vec<(String, String)> {
        let known = self.labels.try_borrow();
        known.map(|labels| labels.to_vec()).unwrap_or_default()
    }
}

/// Adds a label to others that are in the order of their keys, in place of one of the
/// same key. What is too long is cut, and what is too much is left out.
fn add_label(labels: &mut Vec<(String, String)>, key: &str, value: &str) {
    let cut = |text: &str, most| text[..text.floor_char_boundary(most)].to_owned();
    if key.is_empty() || key.len() > MAX_KEY {
        return;
    }
    match labels.binary_search_by(|(known, _)| known.as_str().cmp(key)) {
        Ok(at) => {
            if let Some((_, known)) = labels.get_mut(at) {
                *known = cut(value, MAX_VALUE);
            }
        }
        Err(at) if labels.len() < MAX_LABELS => {
            labels.insert(at, (key.to_owned(), cut(value, MAX_VALUE)));
        }
        Err(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_bounded_and_in_order() {
        let mut labels = Vec::new();
        add_label(&mut labels, "b", "1");
        add_label(&mut labels, "a", &"é".repeat(500));
        add_label(&mut labels, "b", "2");
        add_label(&mut labels, "", "x");
        add_label(&mut labels, &"k".repeat(MAX_KEY + 1), "x");
        assert_eq!(labels[1], ("b".to_owned(), "2".to_owned()));
        assert_eq!(labels[0].1.len(), 254);
        let set = LabelSet::default();
        set.add(&labels);
        let before = set.renewed(7);
        set.remove("a");
        assert_eq!(set.to_vec(), labels[1..]);
        assert_eq!(before.to_vec(), labels);
        for n in 0..1000 {
            add_label(&mut labels, &n.to_string(), "x");
        }
        assert_eq!(labels.len(), MAX_LABELS);
    }
}
