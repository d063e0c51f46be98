//! Numbers from their digits: whole numbers and decimals exactly or not at all, floating point to the nearest.

use std::borrow::Cow;

use arrow::datatypes::i256;

use super::fault::{Fault, excerpt};
use super::reader::{self, Value};

/// The digits of a number, or of a string that holds exactly a number.
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
    if let Value::Text(quoted) = value {
        match quoted {
            r#""NaN""# => return Ok(T::NAN),
            r#""Infinity""# | r#""+Infinity""# | r#""+INF""# => return Ok(T::INFINITY),
            r#""-Infinity""# | r#""-INF""# => return Ok(T::NEG_INFINITY),
            _ => {}
        }
    }
    let text = digits(value, sql)?;
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
