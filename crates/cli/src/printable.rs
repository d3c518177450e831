//! Characters that a terminal, a page and a reader show as they are. The inference server shares this file.

/// Returns text without control and format characters, so that a name can neither change the terminal nor read as another.
pub(crate) fn printable(text: &str) -> String {
    let mut printable = String::with_capacity(text.len());
    for character in text.chars() {
        if is_printable(character) {
            printable.push(character);
        } else {
            printable.extend(character.escape_default());
        }
    }
    printable
}

/// Returns whether a character has a form of its own. Control and format characters have none: an override of the writing
/// direction, for example, makes a name read as another one.
pub(crate) fn is_printable(character: char) -> bool {
    if is_invisible(character) {
        return false;
    }
    // The debug form of a text escapes characters without a form. It leaves a combining mark behind another character.
    let mut text = String::from("x");
    text.push(character);
    let is_shown = text.escape_debug().nth(2).is_none();
    is_shown || matches!(character, '"' | '\'' | '\\')
}

/// Letters and marks that are not shown: Unicode's default ignorable ones, as far as they are no format characters.
fn is_invisible(character: char) -> bool {
    matches!(
        character,
        '\u{34f}'
            | '\u{115f}'
            | '\u{1160}'
            | '\u{17b4}'
            | '\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{ffa0}'
            | '\u{e0000}'..='\u{e0fff}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invisible_characters_are_not_printable() {
        for character in "aZ é\u{301}\"'\\ß漢🦀שع-_<>".chars() {
            assert!(is_printable(character), "{character:?}");
        }
        let overrides = ('\u{202a}'..='\u{202e}').chain('\u{2066}'..='\u{2069}');
        let spaces = '\u{200b}'..='\u{200f}';
        let others = "\0\n\t\u{1b}\u{7f}\u{9b}\u{ad}\u{61c}\u{2028}\u{2029}\u{2060}\u{feff}\u{fff9}\u{e0041}\u{3164}\u{e000}";
        for character in overrides.chain(spaces).chain(others.chars()) {
            assert!(!is_printable(character), "{character:?}");
        }
    }
}
