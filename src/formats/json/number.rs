//! Numbers from their digits: whole numbers and decimals exactly or not at all, floating point to the nearest.

use std::borrow::Cow;

use arrow::datatypes::i256;

use super::fault::{Fault, excerpt};
use super::reader::{self, Value};
use crate::words;

/// The digits of a number, or of a string that holds exactly a number.
#[inline]
fn digits<'a>(value: Value<'a>, expected: &str) -> Result<Cow<'a, str>, Fault> {
    match value {
        Value::Number(text) => Ok(Cow::Borrowed(text)),
        Value::Text(quoted) => {
            let text = reader::content(quoted)?;
            if is_number(&text) { Ok(text) } else { Err(Fault::kind(expected, value)) }
        }
        _ => Err(Fault::kind(expected, value)),
    }
}

/// Whether a text is a JSON number and nothing else.
fn is_number(text: &str) -> bool {
    let edges = text.as_bytes().first().zip(text.as_bytes().last());
    edges.is_some_and(|(first, last)| (first.is_ascii_digit() || *first == b'-') && last.is_ascii_digit())
        && reader::value(text).is_ok()
}

/// A whole number. `1.0` and `1e3` are whole, `1.5` is not.
#[inline]
pub(super) fn whole<T: std::str::FromStr + TryFrom<i128>>(value: Value<'_>, sql: &str) -> Result<T, Fault> {
    let text = digits(value, sql)?;
    match text.parse() {
        Ok(number) => Ok(number),
        Err(_) => whole_exactly(&text)
            .map_err(|inexact| match inexact {
                Inexact::Fraction => format!("{} is not a whole number ({sql})", excerpt(&text)),
                Inexact::Digits => format!("{} is out of range for {sql}", excerpt(&text)),
            })
            .and_then(|number| T::try_from(number).map_err(|_| format!("{} is out of range for {sql}", excerpt(&text))))
            .map_err(Fault::new),
    }
}

fn whole_exactly(text: &str) -> Result<i128, Inexact> {
    scaled(text, 0, 38)?.parse().map_err(|_| Inexact::Digits)
}

/// A number of a floating-point type: the nearest one. A string may also say what Spark reads as not a number or as
/// infinite.
#[inline]
pub(super) fn floating<T: Float>(value: Value<'_>, sql: &str) -> Result<T, Fault> {
    let text = match value {
        Value::Text(r#""NaN""#) => return Ok(T::NAN),
        Value::Text(r#""Infinity""# | r#""+Infinity""# | r#""+INF""#) => return Ok(T::INFINITY),
        Value::Text(r#""-Infinity""# | r#""-INF""#) => return Ok(T::NEG_INFINITY),
        value => digits(value, sql)?,
    };
    if let Some(number) = T::short(&text) {
        return Ok(number);
    }
    match text.parse::<T>() {
        Ok(number) if number.finite() => Ok(number),
        _ => Err(Fault::new(format!("{} is out of range for {sql}", excerpt(&text)))),
    }
}

/// A floating-point type.
pub(super) trait Float: std::str::FromStr {
    const NAN: Self;
    const INFINITY: Self;
    const NEG_INFINITY: Self;
    fn finite(&self) -> bool;

    /// The number, if its digits are so few that a plain way finds the nearest one, too.
    fn short(_text: &str) -> Option<Self> {
        None
    }
}

impl Float for f32 {
    const NAN: Self = f32::NAN;
    const INFINITY: Self = f32::INFINITY;
    const NEG_INFINITY: Self = f32::NEG_INFINITY;
    fn finite(&self) -> bool {
        self.is_finite()
    }
}

impl Float for f64 {
    const NAN: Self = f64::NAN;
    const INFINITY: Self = f64::INFINITY;
    const NEG_INFINITY: Self = f64::NEG_INFINITY;
    fn finite(&self) -> bool {
        self.is_finite()
    }

    /// Up to 15 digits and such a power of ten are both held exactly, so the one division rounds to the nearest (W. D. Clinger,
    /// "How to Read Floating Point Numbers Accurately", 1990).
    #[inline]
    fn short(text: &str) -> Option<Self> {
        const POWERS: [f64; 16] =
            [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15];
        let (negative, number) = text.strip_prefix('-').map_or((false, text), |number| (true, number));
        if !number.starts_with(|first: char| first.is_ascii_digit()) {
            return None;
        }
        if let Some((digits, behind)) = words::number(number.as_bytes()) {
            let size = f64::from(digits) / POWERS[behind];
            return Some(if negative { -size } else { size });
        }
        // One more than the digits, for the point.
        if number.len() > 16 {
            return None;
        }
        let (mut digits, mut behind) = (0_u64, None);
        for (at, byte) in number.bytes().enumerate() {
            match byte {
                b'0'..=b'9' => digits = digits * 10 + u64::from(byte - b'0'),
                b'.' if behind.is_none() => behind = Some(number.len() - at - 1),
                _ => return None,
            }
        }
        // Without a point there may be 16 digits.
        let most = 999_999_999_999_999;
        let size = (digits <= most).then(|| digits as f64 / POWERS[behind.unwrap_or(0)])?;
        Some(if negative { -size } else { size })
    }
}

/// The integer that a decimal type stores.
pub(super) trait Unscaled: Sized {
    fn of(digits: &str) -> Option<Self>;
}

impl Unscaled for i32 {
    fn of(digits: &str) -> Option<Self> {
        digits.parse().ok()
    }
}

impl Unscaled for i64 {
    fn of(digits: &str) -> Option<Self> {
        digits.parse().ok()
    }
}

impl Unscaled for i128 {
    fn of(digits: &str) -> Option<Self> {
        digits.parse().ok()
    }
}

impl Unscaled for i256 {
    fn of(digits: &str) -> Option<Self> {
        i256::from_string(digits)
    }
}

/// A decimal, exactly: never rounded, never cut.
pub(super) fn decimal<T: Unscaled>(value: Value<'_>, precision: u8, scale: i8, sql: &str) -> Result<T, Fault> {
    let text = digits(value, sql)?;
    let digits = scaled(&text, scale.into(), precision.into()).map_err(|inexact| {
        let text = excerpt(&text);
        Fault::new(match inexact {
            Inexact::Digits => format!("{text} has more digits than {sql} holds"),
            Inexact::Fraction if scale < 0 => format!("{text} is not a multiple of 1e{}, as {sql} needs", -scale),
            Inexact::Fraction => format!("{text} has more than {scale} digits after the point, which {sql} holds"),
        })
    })?;
    T::of(&digits).ok_or_else(|| Fault::new(format!("{} has more digits than {sql} holds", excerpt(&text))))
}

/// Why a number has no exact form of the wanted shape.
enum Inexact {
    /// It has more digits than there is room for.
    Digits,
    /// It has digits below the last place.
    Fraction,
}

/// The digits of `number * 10^scale`, which must be a whole number of at most `precision` digits.
fn scaled(number: &str, scale: i64, precision: i64) -> Result<String, Inexact> {
    let (negative, unsigned) = match number.strip_prefix('-') {
        Some(unsigned) => (true, unsigned),
        None => (false, number),
    };
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, power(exponent)),
        None => (unsigned, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    // The value is all digits, read as one whole number, times a power of ten; zeros at both ends say nothing.
    let power = exponent.saturating_sub(length(fraction));
    let fraction_zeros = length(fraction) - length(fraction.trim_end_matches('0'));
    let (whole, fraction, zeros) = if fraction_zeros == length(fraction) {
        let trimmed = whole.trim_end_matches('0');
        (trimmed, "", fraction_zeros + length(whole) - length(trimmed))
    } else {
        (whole, fraction.trim_end_matches('0'), fraction_zeros)
    };
    let power = power.saturating_add(zeros);
    let whole = whole.trim_start_matches('0');
    let fraction = if whole.is_empty() { fraction.trim_start_matches('0') } else { fraction };
    if whole.is_empty() && fraction.is_empty() {
        return Ok("0".into());
    }
    let shift = power.saturating_add(scale);
    if shift < 0 {
        return Err(Inexact::Fraction);
    }
    if length(whole).saturating_add(length(fraction)).saturating_add(shift) > precision {
        return Err(Inexact::Digits);
    }
    let zeros = "0".repeat(shift as usize);
    Ok(format!("{}{whole}{fraction}{zeros}", if negative { "-" } else { "" }))
}

fn length(digits: &str) -> i64 {
    digits.len() as i64
}

/// An exponent; one that is too large for the type stands for one that is too large for every number.
fn power(exponent: &str) -> i64 {
    const FAR: i64 = 1 << 40;
    let beyond = if exponent.starts_with('-') { -FAR } else { FAR };
    exponent.parse::<i64>().map_or(beyond, |power| power.clamp(-FAR, FAR))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn a_short_number_is_the_one_that_the_long_way_finds() {
        let mut random = Random(15);
        let mut short = 0;
        for _ in 0..200_000 {
            let (digits, places) = (random.next() % 18, random.next() % 18);
            let number = random.next() % 10_u64.pow(digits as u32);
            let (whole, fraction) =
                (number / 10_u64.pow(places.min(17) as u32 / 2), random.next() % 10_u64.pow(places as u32));
            let sign = if random.next().is_multiple_of(2) { "-" } else { "" };
            let fraction = format!("{fraction:0>places$}", places = places as usize);
            for text in [format!("{sign}{whole}.{fraction}"), format!("{sign}{whole}")] {
                let Some(number) = f64::short(&text) else { continue };
                short += 1;
                assert_eq!(Ok(number.to_bits()), text.parse::<f64>().map(f64::to_bits), "{text}");
            }
        }
        assert!(short > 100_000, "{short}");
        for text in
            ["0", "-0", "0.0", "-0.0", "999999999999999", "0.00000000000001", "12.50", "0.3", "99999999999999.9"]
        {
            assert_eq!(f64::short(text).map(f64::to_bits), text.parse::<f64>().ok().map(f64::to_bits), "{text}");
        }
        for text in ["", "-", ".", ".5", "1e3", "1.5e3", "1000000000000000", "9007199254740993", "0.1234567890123456"] {
            assert_eq!(f64::short(text), None, "{text}");
        }
    }
}
