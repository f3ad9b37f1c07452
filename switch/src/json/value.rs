//! The `{"type": …, "value": …}` objects that stand wherever a program names data.

use serde::Deserialize;
use serde_json::Value as Json;

use crate::error::LoadError;

/// A type-value object as it stands in the file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawValue {
    r#type: String,
    #[serde(default)]
    value: Json,
    /// Width of a constant in a calculation; absent elsewhere.
    #[serde(default)]
    bitwidth: Option<u16>,
}

/// A type-value object, understood.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    /// `(header instance, field)`; field `$valid$` is the header's validity.
    Field(String, String),
    /// A constant; up to 64 bits and a sign. `bits`: its width in a calculation's input.
    Const {
        value: i128,
        bits: Option<u16>,
    },
    Bool(bool),
    /// An action parameter, by position.
    Param(usize),
    Header(String),
    Calculation(String),
    Counter(String),
    Register(String),
    /// Bit offset from the parser's position, and width.
    Lookahead(u32, u16),
    Expr(Box<Expr>),
    /// The rest of the packet, as a calculation's input.
    Payload,
    /// Format strings and argument lists of `log_msg`: nothing here runs them.
    Text,
}

/// An operation.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Expr {
    pub(crate) op: String,
    pub(crate) left: Option<Value>,
    pub(crate) right: Option<Value>,
    pub(crate) cond: Option<Value>,
}

impl RawValue {
    /// Parses the object; `place` says where it stands, for messages.
    pub(crate) fn parse(&self, place: &str) -> Result<Value, LoadError> {
        let malformed = |expected: &str| LoadError::Malformed {
            place: place.to_owned(),
            expected: format!("{expected} as value of type `{}`", self.r#type),
            found: self.value.to_string(),
        };
        let string = || self.value.as_str().map(str::to_owned).ok_or_else(|| malformed("a name"));
        Ok(match self.r#type.as_str() {
            "field" => {
                let (header, field) = field_name(&self.value).ok_or_else(|| malformed("[header, field]"))?;
                Value::Field(header, field)
            }
            "hexstr" => {
                let text = string()?;
                let value = parse_hex(&text).map_err(|reason| match reason {
                    HexError::Digits => malformed("hexadecimal digits"),
                    HexError::Wide => unsupported(place, &format!("a constant of more than 64 bits, {text}")),
                })?;
                Value::Const { value, bits: self.bitwidth }
            }
            "bool" => Value::Bool(self.value.as_bool().ok_or_else(|| malformed("true or false"))?),
            "runtime_data" | "local" => {
                let index = self.value.as_u64().and_then(|v| usize::try_from(v).ok());
                Value::Param(index.ok_or_else(|| malformed("a parameter's position"))?)
            }
            "header" | "regular" => Value::Header(string()?),
            "calculation" => Value::Calculation(string()?),
            "counter_array" => Value::Counter(string()?),
            "register_array" => Value::Register(string()?),
            "lookahead" => {
                let pair = self.value.as_array().filter(|a| a.len() == 2);
                let parts = pair.and_then(|a| {
                    Some((u32::try_from(a[0].as_u64()?).ok()?, u16::try_from(a[1].as_u64()?).ok()?))
                });
                let (offset, width) = parts.ok_or_else(|| malformed("[bit offset, width]"))?;
                Value::Lookahead(offset, width)
            }
            "expression" => parse_expression(&self.value, place)?,
            "payload" => Value::Payload,
            "string" | "parameters_vector" => Value::Text,
            other => return Err(unsupported(place, &format!("data of type `{other}`"))),
        })
    }
}

/// The value of an `expression` object: an operation, or (p4c wraps some twice) another type-value object.
fn parse_expression(json: &Json, place: &str) -> Result<Value, LoadError> {
    let malformed = |expected: &str| LoadError::Malformed {
        place: place.to_owned(),
        expected: expected.to_owned(),
        found: json.to_string(),
    };
    let object = json.as_object().ok_or_else(|| malformed("an expression"))?;
    if object.contains_key("type") {
        let inner: RawValue = serde_json::from_value(json.clone())
            .map_err(|e| malformed(&format!("a type-value object ({e})")))?;
        return inner.parse(place);
    }
    let operand = |name: &str| -> Result<Option<Value>, LoadError> {
        match object.get(name) {
            None | Some(Json::Null) => Ok(None),
            // Access by position (`access_field`) has a bare number; the operation is refused by name.
            Some(Json::Number(n)) => {
                Ok(Some(Value::Const { value: i128::from(n.as_i64().unwrap_or(0)), bits: None }))
            }
            Some(json) => {
                let raw: RawValue = serde_json::from_value(json.clone())
                    .map_err(|e| malformed(&format!("a type-value object as `{name}` ({e})")))?;
                raw.parse(place).map(Some)
            }
        }
    };
    let op = object.get("op").and_then(Json::as_str).ok_or_else(|| malformed("an expression with `op`"))?;
    Ok(Value::Expr(Box::new(Expr {
        op: op.to_owned(),
        left: operand("left")?,
        right: operand("right")?,
        cond: operand("cond")?,
    })))
}

fn field_name(json: &Json) -> Option<(String, String)> {
    match json.as_array()?.as_slice() {
        [Json::String(header), Json::String(field)] => Some((header.clone(), field.clone())),
        _ => None,
    }
}

fn unsupported(place: &str, what: &str) -> LoadError {
    LoadError::Unsupported { place: place.to_owned(), what: what.to_owned() }
}

/// Errors in a hex string.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HexError {
    Digits,
    Wide,
}

/// A hex string such as `0x00ff` or `-0x1`, up to 64 bits of magnitude.
pub(crate) fn parse_hex(text: &str) -> Result<i128, HexError> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let digits = digits.strip_prefix("0x").unwrap_or(digits);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err(HexError::Digits);
    }
    let digits = digits.trim_start_matches('0');
    if digits.len() > 16 {
        return Err(HexError::Wide);
    }
    let magnitude =
        if digits.is_empty() { 0 } else { u64::from_str_radix(digits, 16).map_err(|_| HexError::Digits)? };
    let magnitude = i128::from(magnitude);
    Ok(if negative { -magnitude } else { magnitude })
}

/// A hex string that fits `width` bits, two's complement when negative.
pub(crate) fn hex_u64(text: &str, width: u16, place: &str) -> Result<u64, LoadError> {
    let value = parse_hex(text).map_err(|_| LoadError::Malformed {
        place: place.to_owned(),
        expected: format!("a hexadecimal number of at most {width} bits"),
        found: format!("`{text}`"),
    })?;
    let mask = if width >= 64 { u64::MAX } else { (1 << width) - 1 };
    let raw = value as u64; // the low 64 bits, two's complement
    let fits = if value < 0 { value >= -(1i128 << (width - 1)) } else { raw <= mask };
    if fits {
        Ok(raw & mask)
    } else {
        Err(LoadError::Malformed {
            place: place.to_owned(),
            expected: format!("a number of at most {width} bits"),
            found: format!("`{text}`"),
        })
    }
}

/// Splits a hex string into big-endian words of the given byte widths, as parser transitions concatenate
/// the byte-padded parts of their key. `None` when it is not hexadecimal or too long.
pub(crate) fn hex_words(text: &str, byte_widths: &[usize]) -> Option<Vec<u64>> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    let total: usize = byte_widths.iter().sum();
    if digits.len() > 2 * total || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    let padded = format!("{digits:0>width$}", width = 2 * total);
    let mut at = 0;
    let mut words = Vec::with_capacity(byte_widths.len());
    for &bytes in byte_widths {
        words.push(u64::from_str_radix(&padded[at..at + 2 * bytes], 16).ok()?);
        at += 2 * bytes;
    }
    Some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Value, LoadError> {
        serde_json::from_str::<RawValue>(text).unwrap().parse("action `a`")
    }

    #[test]
    fn hex_strings_have_sign_and_width() {
        assert_eq!(parse_hex("0x00ff"), Ok(255));
        assert_eq!(parse_hex("-0x01"), Ok(-1));
        assert_eq!(parse_hex("0xffffffffffffffff"), Ok(i128::from(u64::MAX)));
        assert_eq!(parse_hex("0x0000000000000000ff"), Ok(255));
        assert_eq!(parse_hex("0x1ffffffffffffffff"), Err(HexError::Wide));
        assert_eq!(parse_hex("0x"), Err(HexError::Digits));
        assert_eq!(parse_hex("0xg"), Err(HexError::Digits));
        assert_eq!(hex_u64("-0x01", 8, "x"), Ok(0xff));
        assert!(hex_u64("0x100", 8, "x").is_err());
    }

    #[test]
    fn transition_values_split_into_padded_parts() {
        // The format's own example: a 12-bit and a 2-bit part.
        assert_eq!(hex_words("0x0aba03", &[2, 1]), Some(vec![0xaba, 3]));
        assert_eq!(hex_words("0x03", &[2, 1]), Some(vec![0, 3]));
        assert_eq!(hex_words("0x01020304", &[2, 1]), None);
    }

    #[test]
    fn doubly_wrapped_expressions_are_one() {
        let text = r#"{"type": "expression", "value": {"type": "expression", "value":
            {"op": "d2b", "left": null, "right": {"type": "field", "value": ["m", "f"]}}}}"#;
        let Value::Expr(expr) = parse(text).unwrap() else { panic!("not an expression") };
        assert_eq!(expr.op, "d2b");
        assert_eq!(expr.left, None);
        assert_eq!(expr.right, Some(Value::Field("m".into(), "f".into())));
    }

    #[test]
    fn types_we_do_not_run_are_named() {
        let error = parse(r#"{"type": "stack_field", "value": ["s", "f"]}"#).unwrap_err().to_string();
        assert!(error.contains("action `a`") && error.contains("`stack_field`"), "{error}");
        let error =
            parse(r#"{"type": "hexstr", "value": "0x11112222333344445555"}"#).unwrap_err().to_string();
        assert!(error.contains("more than 64 bits"), "{error}");
    }
}
