//! The id of a topic, as Kafka writes it: 16 bytes in base64.
//!
//! Brokers' tools show the variant for URLs, librdkafka's log the ordinary one; both without padding.

use uuid::{Builder, Uuid};

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// The id as `kafka-topics --describe` shows it.
pub fn kafka_form(id: Uuid) -> String {
    let bits = id.as_u128();
    // 128 bits are 21 letters and 2 bits more, which the last letter carries in front.
    let letters = (0..21).map(|i| (bits >> (122 - 6 * i)) & 63).chain([(bits & 3) << 4]);
    letters.map(|letter| char::from(ALPHABET[letter as usize])).collect()
}

/// Reads an id in either variant of base64.
pub(super) fn parse(text: &str) -> Option<Uuid> {
    if text.len() != 22 {
        return None;
    }
    let mut bits: u128 = 0;
    for (i, letter) in text.bytes().enumerate() {
        let letter = match letter {
            b'+' => b'-',
            b'/' => b'_',
            other => other,
        };
        let value = ALPHABET.iter().position(|known| *known == letter)? as u128;
        bits = if i < 21 { bits << 6 | value } else { bits << 2 | value >> 4 };
    }
    Some(Uuid::from_u128(bits))
}

/// The id that stands in for the real one when the brokers are too old to give topics ids: always the same for a name.
/// A topic that is deleted and created again is not noticed then.
pub fn of_name(topic: &str) -> Uuid {
    let half = |seed| twox_hash::XxHash3_64::oneshot_with_seed(seed, topic.as_bytes()).to_be_bytes();
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&half(0));
    bytes[8..].copy_from_slice(&half(1));
    Builder::from_custom_bytes(bytes).into_uuid()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn ids_are_read_as_they_are_written() {
        for bits in [0, 1, u128::MAX, 0x0123_4567_89ab_cdef_fedc_ba98_7654_3210, 1 << 127, 0xfb_ff_fe << 100] {
            let id = Uuid::from_u128(bits);
            assert_eq!(parse(&kafka_form(id)), Some(id), "{}", kafka_form(id));
        }
    }

    #[test]
    fn ids_look_as_kafka_shows_them() {
        // From `java.util.Base64` over the same bytes.
        let id = Uuid::parse_str("fbff3e00-0000-4000-8000-0000000000ff").unwrap();
        assert_eq!(kafka_form(id), "-_8-AAAAQACAAAAAAAAA_w");
        assert_eq!(parse("+/8+AAAAQACAAAAAAAAA/w"), Some(id));
        assert_eq!(kafka_form(Uuid::nil()), "AAAAAAAAAAAAAAAAAAAAAA");
    }

    #[test]
    fn what_is_no_id_is_refused() {
        for text in ["", "AAAA", "AAAAAAAAAAAAAAAAAAAAA=", "AAAAAAAAAAAAAAAAAAAAA ", "AAAAAAAAAAAAAAAAAAAAAAA"] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_name_always_gives_the_same_id() {
        assert_eq!(of_name("orders"), of_name("orders"));
        assert_ne!(of_name("orders"), of_name("order"));
        assert_eq!(of_name("orders").get_version_num(), 8);
    }
}
