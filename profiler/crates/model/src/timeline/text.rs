//! Texts that occur once: the arguments of events.

/// Size of a block that texts are added to, bytes.
const BLOCK: usize = 1 << 20;

/// A text of [`Texts`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Text {
    /// Number of its block.
    pub block: u32,
    /// Its first byte in it.
    pub start: u32,
    /// Bytes.
    pub len: u32,
}

impl Text {
    /// Nothing.
    pub const EMPTY: Self = Self {
        block: 0,
        start: 0,
        len: 0,
    };

    /// Whether there is nothing.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }
}

/// Texts in large blocks, which never move.
#[derive(Debug, Default)]
pub struct Texts {
    blocks: Vec<String>,
}

impl Texts {
    /// Takes a block over; gives its number.
    pub fn add_block(&mut self, mut block: String) -> u32 {
        block.shrink_to_fit();
        self.blocks.push(block);
        self.blocks.len() as u32 - 1
    }

    /// Adds a text.
    pub fn add(&mut self, text: &str) -> Text {
        self.join(&[text])
    }

    /// Adds a text made of several.
    pub fn join(&mut self, parts: &[&str]) -> Text {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        if len == 0 {
            return Text::EMPTY;
        }
        let fits = |block: &String| block.capacity() - block.len() >= len;
        if !self.blocks.last().is_some_and(fits) {
            self.blocks.push(String::with_capacity(len.max(BLOCK)));
        }
        let block = self.blocks.len() - 1;
        let Some(text) = self.blocks.last_mut() else {
            return Text::EMPTY;
        };
        let start = text.len();
        parts.iter().for_each(|part| text.push_str(part));
        match (
            u32::try_from(block),
            u32::try_from(start),
            u32::try_from(len),
        ) {
            (Ok(block), Ok(start), Ok(len)) => Text { block, start, len },
            _ => Text::EMPTY,
        }
    }

    /// The text itself.
    pub fn get(&self, text: Text) -> &str {
        let start = text.start as usize;
        self.blocks
            .get(text.block as usize)
            .and_then(|block| block.get(start..start + text.len as usize))
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_read_back_whatever_their_length() {
        let mut texts = Texts::default();
        let block = texts.add_block("0123".into());
        let lengths = [1, 5, BLOCK - 3, BLOCK + 7, 0, 12];
        let given: Vec<String> = lengths.iter().map(|n| "x".repeat(*n)).collect();
        let kept: Vec<Text> = given
            .iter()
            .map(|text| texts.join(&[&text[..], ""]))
            .collect();
        for (text, kept) in given.iter().zip(kept) {
            assert_eq!(texts.get(kept), text);
        }
        let part = Text {
            block,
            start: 1,
            len: 2,
        };
        assert_eq!(texts.get(part), "12");
        assert_eq!(texts.get(Text { len: 9, ..part }), "");
    }
}
