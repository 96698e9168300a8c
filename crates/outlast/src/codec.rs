//! The byte format of the small messages between members: a tag, numbers, and at most one text.
//!
//! | bytes | content |
//! |---|---|
//! | 0 | the tag, which tells the kinds of message of a protocol apart |
//! | 1 to 8 n | n words of 64 bits, little-endian |
//! | the rest | a text in UTF-8, empty in most messages |
//!
//! The bytes do not say how many words there are: the reader knows it from the tag. A message has
//! either a text behind a fixed number of words, or a list of words that ends with the message.
//!
//! A member decodes bytes that another member wrote. Bytes that are cut off give `None`, never a
//! panic; bytes behind the content that the reader asks for are ignored.

#![forbid(unsafe_code)]

/// The length of a word in bytes.
const WORD_LEN: usize = size_of::<u64>();

/// Returns the bytes of a message.
pub(crate) fn encode(tag: u8, words: &[u64], text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(1 + words.len() * WORD_LEN + text.len());
    bytes.push(tag);
    words.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
    bytes.extend(text.as_bytes());
    bytes
}

/// A message that was received, taken apart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Encoded<'a> {
    tag: u8,
    content: &'a [u8],
}

impl<'a> Encoded<'a> {
    /// Reads the tag; `None` if there are no bytes.
    pub(crate) fn new(bytes: &'a [u8]) -> Option<Encoded<'a>> {
        let (&tag, content) = bytes.split_first()?;
        Some(Encoded { tag, content })
    }

    /// Returns the tag.
    pub(crate) fn tag(&self) -> u8 {
        self.tag
    }

    /// Returns the word with this index, counted from 0; `None` if the message is too short for it.
    pub(crate) fn word(&self, index: usize) -> Option<u64> {
        self.words().nth(index)
    }

    /// Returns all words of a message without text. An incomplete word at the end is left out.
    pub(crate) fn words(&self) -> impl Iterator<Item = u64> + use<'a> {
        let words = self.content.chunks_exact(WORD_LEN);
        words.map(|word| u64::from_le_bytes(word.try_into().expect("a chunk is a word long")))
    }

    /// Returns the text behind the first `words` words; bytes that are no UTF-8 are replaced.
    pub(crate) fn text_after(&self, words: usize) -> String {
        String::from_utf8_lossy(self.content.get(words * WORD_LEN..).unwrap_or_default()).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_text_are_read_as_they_were_written() {
        let bytes = encode(7, &[1, u64::MAX], "no room");
        let encoded = Encoded::new(&bytes).unwrap();
        assert_eq!((encoded.tag(), encoded.word(0), encoded.word(1)), (7, Some(1), Some(u64::MAX)));
        assert_eq!(encoded.text_after(2), "no room");
    }

    /// The wire format is fixed: a change must break this test.
    #[test]
    fn the_bytes_are_the_tag_the_words_in_little_endian_and_the_text() {
        assert_eq!(encode(3, &[0x0102], "ab"), [3, 2, 1, 0, 0, 0, 0, 0, 0, b'a', b'b']);
        assert_eq!(encode(4, &[], ""), [4]);
    }

    #[test]
    fn a_list_of_words_ends_with_the_message() {
        for list in [&[][..], &[9], &[5, 6, 7]] {
            let bytes = encode(0, list, "");
            assert!(Encoded::new(&bytes).unwrap().words().eq(list.iter().copied()));
        }
    }

    #[test]
    fn a_message_that_was_cut_off_has_no_more_than_what_is_left() {
        assert!(Encoded::new(&[]).is_none());
        let bytes = encode(1, &[8, 9], "");
        for len in 1..bytes.len() {
            let encoded = Encoded::new(&bytes[..len]).unwrap();
            assert_eq!(encoded.word(0), (len > 8).then_some(8), "{len} bytes");
            assert_eq!(encoded.word(1), None, "{len} bytes");
            assert_eq!(encoded.words().count(), (len - 1) / 8, "{len} bytes");
            assert_eq!(encoded.text_after(2), "", "{len} bytes");
        }
    }

    #[test]
    fn a_text_that_is_no_utf8_is_replaced() {
        let mut bytes = encode(1, &[0], "x");
        bytes.push(0xff);
        assert_eq!(Encoded::new(&bytes).unwrap().text_after(1), "x\u{fffd}");
    }
}
