//! What is wrong with the statements, and where.
//!
//! Every refusal says what, why and what to do; wherever it can be known, it names the line and the column.

use std::fmt;

use datafusion::error::DataFusionError;
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::tokenizer::{Location, Span, Token, TokenWithSpan, Tokenizer};

use super::depth;

/// A place in the text of the statements; both numbers start at 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The line.
    pub line: u64,
    /// The column.
    pub column: u64,
}

impl Place {
    /// Where a span begins, if the parser knows it.
    pub(super) fn of(span: Span) -> Option<Self> {
        Self::at(span.start)
    }

    fn at(start: Location) -> Option<Self> {
        (start.line > 0).then_some(Self { line: start.line, column: start.column })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

/// Why the statements make no pipeline.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct SqlError {
    /// What is wrong and what to do.
    pub message: String,
    /// Where in the text.
    pub place: Option<Place>,
}

impl fmt::Display for SqlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place {
            Some(place) => write!(f, "{place}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

impl SqlError {
    /// An error whose place is not known.
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), place: None }
    }

    /// An error at a place, if it is known.
    pub(super) fn at(message: impl Into<String>, place: Option<Place>) -> Self {
        Self { message: message.into(), place }
    }

    /// The same error, at this place unless it has one already.
    pub(super) fn or_at(mut self, place: Option<Place>) -> Self {
        self.place = self.place.or(place);
        self
    }
}

impl From<DataFusionError> for SqlError {
    fn from(error: DataFusionError) -> Self {
        let place = error
            .diagnostic()
            .and_then(|diagnostic| diagnostic.span)
            .map(|span| Place { line: span.start.line, column: span.start.column });
        let message = error.strip_backtrace();
        let message = PREFIXES.iter().fold(message, |text, prefix| match text.strip_prefix(prefix) {
            Some(rest) => rest.to_owned(),
            None => text,
        });
        let message = match message.find("No function matches the given name") {
            Some(start) => &message[start..],
            None => message.trim_end().trim_end_matches("\")"),
        };
        match place_of_parser(message) {
            Some((rest, at)) => Self::at(rest, place.or(Some(at))),
            None => Self::at(message, place),
        }
    }
}

/// What DataFusion puts before its messages; it says nothing to someone who wrote the statements.
const PREFIXES: [&str; 10] = [
    "type_coercion\ncaused by\n",
    "Optimizer rule 'simplify_expressions' failed\ncaused by\n",
    "Arrow error: ",
    "SQL error: ",
    "ParserError(\"",
    "TokenizerError(\"",
    "Error during planning: ",
    "This feature is not implemented: ",
    "Schema error: ",
    "Execution error: ",
];

/// A word that is not quoted.
fn plain_word(token: &Token) -> Option<&str> {
    match token {
        Token::Word(word) if word.quote_style.is_none() => Some(&word.value),
        _ => None,
    }
}

/// Words of other dialects at which the parser stumbles, and what there is in their place.
const ELSEWHERE: [(&str, &str); 7] = [
    ("TUMBLE", GROUPED),
    ("HOP", GROUPED),
    ("CUMULATE", GROUPED),
    ("TUMBLING", GROUPED),
    ("HOPPING", GROUPED),
    (
        "WATERMARK",
        "the watermark is an option of the table: OPTIONS ('watermark.column' 'ts', 'watermark.delay' '5 seconds')",
    ),
    (
        "EMIT",
        "when results are written is an option of the table they go to: OPTIONS ('output.mode' 'append') or 'update'",
    ),
];
const GROUPED: &str =
    "windows are made by GROUP BY window(ts, '1 minute') here, sessions by session_window(ts, '5 minutes')";

/// What the clauses of statements begin with.
const KEYWORDS: [&str; 22] = [
    "CREATE",
    "EXTERNAL",
    "TABLE",
    "VIEW",
    "PRIMARY KEY",
    "STORED AS",
    "LOCATION",
    "OPTIONS",
    "INSERT",
    "INTO",
    "SELECT",
    "DISTINCT",
    "FROM",
    "WHERE",
    "GROUP BY",
    "HAVING",
    "QUALIFY",
    "UNION",
    "PARTITION BY",
    "ORDER BY",
    "BETWEEN",
    "FILTER",
];

/// Splits ` at Line: 1, Column: 8` off a message of the parser.
fn place_of_parser(message: &str) -> Option<(&str, Place)> {
    let (rest, at) = message.rsplit_once(" at Line: ")?;
    let (line, column) = at.split_once(", Column: ")?;
    Some((rest, Place { line: line.parse().ok()?, column: column.parse().ok()? }))
}

/// The text of the statements, for looking up where something was written.
pub(super) struct Text {
    tokens: Vec<TokenWithSpan>,
}

impl Text {
    /// Reads the text. What cannot be read is left to the parser to complain about.
    pub(super) fn new(sql: &str) -> Self {
        let tokens = Tokenizer::new(&GenericDialect {}, sql).tokenize_with_location().unwrap_or_default();
        Self { tokens }
    }

    /// Refuses what nests too deep for those who read it after this.
    pub(super) fn check_depth(&self) -> Result<(), SqlError> {
        depth::check(&self.tokens)
    }

    /// An error of the parser, with the keyword that was likely meant if a word at its place, or right before it, is one but for
    /// a letter: of `FROM orders GROUPBY user_id` the parser complains about `user_id`. A word that is there twice is a name.
    pub(super) fn advised(&self, error: SqlError) -> SqlError {
        let Some(Place { line, column }) = error.place else { return error };
        let before =
            self.tokens.iter().filter(|token| (token.span.start.line, token.span.start.column) <= (line, column));
        let words: Vec<_> = before
            .rev()
            .take_while(|token| token.token != Token::SemiColon)
            .filter_map(|token| plain_word(&token.token))
            .take(6)
            .collect();
        let is = |word: &str, other: &str| word.eq_ignore_ascii_case(other);
        if let Some((_, instead)) = ELSEWHERE.iter().find(|(word, _)| words.iter().any(|found| is(found, word))) {
            return SqlError { message: format!("{}; {instead}", error.message), ..error };
        }
        let slip = words.iter().take(2).find_map(|word| {
            let far = |keyword: &&&str| strsim::damerau_levenshtein(&word.to_uppercase(), keyword);
            let keyword = KEYWORDS.iter().find(|keyword| far(keyword) == 1)?;
            let times = self.tokens.iter().filter_map(|token| plain_word(&token.token)).filter(|other| is(other, word));
            (word.len() > 3 && times.count() == 1).then_some((word, keyword))
        });
        match slip {
            Some((word, keyword)) => {
                let message = format!("{}; did you mean {keyword} where {word} stands?", error.message);
                SqlError { message, ..error }
            }
            None => error,
        }
    }

    /// The first place of a word outside strings and comments at or after another place, whatever its case.
    pub(super) fn word(&self, word: &str, after: Option<Place>) -> Option<Place> {
        self.find(after, |token| matches!(token, Token::Word(found) if found.value.eq_ignore_ascii_case(word)))
    }

    /// The first place of a quoted string at or after another place.
    pub(super) fn string(&self, string: &str, after: Option<Place>) -> Option<Place> {
        self.find(after, |token| {
            matches!(token, Token::SingleQuotedString(found) | Token::DoubleQuotedString(found)
                if found.eq_ignore_ascii_case(string))
        })
        .or_else(|| {
            let first = string.split('.').next()?;
            self.find(after, |token| matches!(token, Token::Word(found) if found.value.eq_ignore_ascii_case(first)))
        })
    }

    /// Where each statement begins.
    pub(super) fn statements(&self) -> Vec<Place> {
        let mut starts = Vec::new();
        let mut fresh = true;
        for token in &self.tokens {
            match token.token {
                Token::SemiColon => fresh = true,
                Token::Whitespace(_) | Token::EOF => {}
                _ if fresh => {
                    starts.extend(Place::of(token.span));
                    fresh = false;
                }
                _ => {}
            }
        }
        starts
    }

    fn find(&self, after: Option<Place>, wanted: impl Fn(&Token) -> bool) -> Option<Place> {
        self.tokens
            .iter()
            .filter(|token| {
                after.is_none_or(|after| (token.span.start.line, token.span.start.column) >= (after.line, after.column))
            })
            .find(|token| wanted(&token.token))
            .and_then(|token| Place::of(token.span))
    }
}
