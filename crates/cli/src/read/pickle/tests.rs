use super::*;

const MOST: usize = 1 << 20;

fn decoded(pickle: &[u8]) -> Result<Pickle, (Location, Fault)> {
    decode(&[&[MAGIC, 2], pickle, b"."].concat()[..], MOST)
}

fn reason(pickle: &[u8]) -> String {
    decoded(pickle).unwrap_err().1.to_string()
}

/// Returns the number that a pickle is, or `None` if it is another value.
fn number(pickle: &[u8]) -> Option<i64> {
    match decoded(pickle).unwrap().root() {
        Value::Int(number) => Some(number),
        _ => None,
    }
}

#[test]
fn numbers_of_every_opcode_are_decoded() {
    for (pickle, expected) in [
        (&b"K\x07"[..], Some(7)),
        (b"M\x01\x02", Some(0x201)),
        (b"J\xff\xff\xff\xff", Some(-1)),
        (b"\x8a\x00", Some(0)),
        (b"\x8a\x01\xff", Some(-1)),
        (b"\x8a\x02\xff\x00", Some(255)),
        (b"\x8b\x01\x00\x00\x00\x09", Some(9)),
        (b"\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\x01", None),
        (
            b"\x8a\x09\x00\x00\x00\x00\x00\x00\x02\x00\x00",
            Some(1 << 49),
        ),
        (b"I-12\n", Some(-12)),
        (b"I01\n", None),
        (b"L34L\n", Some(34)),
        (b"N", None),
        (b"\x88", None),
        (b"F1.5\n", None),
        (b"G\x00\x00\x00\x00\x00\x00\x00\x00", None),
    ] {
        assert_eq!(number(pickle), expected, "{pickle:?}");
    }
}

#[test]
fn dictionary_gives_its_latest_value_of_a_key() {
    let pickle = decoded(b"}(X\x04\x00\x00\x00sizeK\x01\x8c\x04sizeK\x02\x8c\x01xK\x03u").unwrap();
    let root = pickle.root();
    assert_eq!(pickle.get(root, Word::Size), Some(Value::Int(2)));
    assert_eq!(pickle.get(root, Word::Addr), None);
    let built = decoded(b"(\x8c\x04sizeK\x05d").unwrap();
    assert_eq!(built.get(built.root(), Word::Size), Some(Value::Int(5)));
}

#[test]
fn lists_and_tuples_are_items_and_the_memo_recalls_them() {
    for pickle in [
        &b"](K\x01K\x02e"[..],
        b"(K\x01K\x02t",
        b"(K\x01K\x02l",
        b"K\x01K\x02\x86",
        b"]K\x01aK\x02a",
        b"](K\x01K\x02eq\x050h\x05",
        b"]\x94(K\x01K\x02e0j\x00\x00\x00\x00",
    ] {
        let pickle = decoded(pickle).unwrap();
        let items = pickle.items(pickle.root()).unwrap();
        assert_eq!(items, [Value::Int(1), Value::Int(2)]);
    }
}

#[test]
fn objects_of_classes_are_passed_over() {
    for pickle in [
        &b"cbuiltins\nset\n]\x85R"[..],
        b"\x8c\x08builtins\x8c\x03set\x93)\x81}b",
        b"\x8f(K\x01K\x02\x90",
        b"(K\x01\x91",
        b"C\x03abc",
        b"\x96\x02\x00\x00\x00\x00\x00\x00\x00ab",
    ] {
        assert_eq!(decoded(pickle).unwrap().root(), Value::Other);
    }
}

/// Recursion would overflow the stack of the host.
#[test]
fn deep_nesting_takes_no_stack() {
    let depth = 1_000_000;
    let nested = |open: &[u8], close: &[u8]| [open.repeat(depth), close.repeat(depth - 1)].concat();
    for pickle in [
        nested(b"]", b"a"),
        nested(b"(", b"t"),
        nested(b"}\x8c\x05extra", b"s"),
    ] {
        let pickle = [&[MAGIC, 2], &pickle[..], b"0K\x01."].concat();
        let decoded = decode(&pickle[..], 1 << 30);
        let is_decoded = decoded
            .as_ref()
            .is_ok_and(|pickle| pickle.root() == Value::Int(1));
        let is_refused = decoded.is_err_and(|(_, fault)| matches!(fault, Fault::Pickle { .. }));
        assert!(is_decoded || is_refused);
    }
}

/// Each list holds the one before it twice: spelled out, the last one would have 2^60 items.
#[test]
fn shared_values_are_not_multiplied() {
    let mut pickle = b"]q\x00".to_vec();
    for step in 1..60 {
        pickle.extend([b']', b'(', b'h', step - 1, b'h', step - 1, b'e', b'q', step]);
    }
    let pickle = decoded(&pickle).unwrap();
    assert_eq!(pickle.items(pickle.root()).unwrap().len(), 2);
}

#[test]
fn values_beyond_the_limit_are_refused() {
    for repeated in [
        &b"N"[..],
        b"(",
        b"]",
        b"}",
        b"]q\x00",
        b"N\x94",
        b"K\x01\x85",
    ] {
        let (_, fault) = decoded(&repeated.repeat(MOST)).unwrap_err();
        let is_limit = matches!(fault, Fault::TooMany { .. });
        assert!(is_limit, "{repeated:?}: {fault}");
    }
    let appended = [b"]".to_vec(), b"Na".repeat(MOST)].concat();
    assert!(decoded(&appended).is_err());
}

#[test]
fn number_with_too_many_digits_is_refused() {
    let digits = [&b"L"[..], &b"7".repeat(LINE_BYTES), b"L\n"].concat();
    assert_eq!(decoded(&digits).unwrap_err().1, Fault::LineTooLong);
    let most = [&b"L"[..], &b"7".repeat(LINE_BYTES - 2), b"L\n"].concat();
    assert_eq!(number(&most), None);
}

#[test]
fn damage_is_named_with_its_byte() {
    for (pickle, expected) in [
        (&b"a"[..], "it pops an empty stack"),
        (b"(a", "it pops an empty stack"),
        (b"e", "it pops an empty stack"),
        (b"h\x07", "it reads a missing memo entry"),
        (b"K\x01K\x02a", "it appends to a value that is not a list"),
        (b"}(K\x01u", "a key has no value"),
        (
            b"](K\x01K\x02u",
            "it adds a key to a value that is not a dictionary",
        ),
        (b"T\xff\xff\xff\xff", "a length is negative"),
        (b"Lx\n", "a number has no digits"),
        (b"\xfe", "the opcode 0xfe"),
        (b"K", "it ends too early"),
        (b"X\xff\xff\xff\xffabc", "it ends too early"),
        (b"N.N", "bytes follow the end"),
    ] {
        let reason = reason(pickle);
        assert!(reason.contains(expected), "{pickle:?}: {reason}");
    }
    let (location, _) = decoded(b"NN0\xfe").unwrap_err();
    assert_eq!(location, Location::Byte(6));
}
