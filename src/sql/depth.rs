//! How deep the statements may nest. The parser and the planner go down into an expression by calling themselves, and so
//! does whoever evaluates it on a batch later; a text that is deep enough would bring any of them to the end of their
//! stack, which ends the process. So it is measured before anything else is done with it.
//!
//! What is measured is an upper bound that needs no parser: within one pair of brackets, everything between two commas may
//! be one chain of operators, each a level of its own. Views and queries of WITH are put into others by their names, so
//! expressions are measured again after that.

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion, TreeNodeVisitor};
use datafusion::error::DataFusionError;
use datafusion::logical_expr::Expr;
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};

use super::error::{Place, SqlError};

/// The most levels: more than anybody writes, and few enough for every stack.
pub(super) const DEEPEST: usize = 400;
/// The most queries that are put into others by their names.
const MOST_NAMED: usize = 100;
/// The most parts that an expression may have once everything is put into it.
const LARGEST: usize = 50_000;

/// What is open at a place of the text.
#[derive(Default)]
struct Group {
    /// Operators and keywords since the last comma.
    chain: usize,
    /// Those that a comma does not end: set operations, and the angles of types.
    kept: usize,
    /// It is a CASE, which ends with END.
    case: bool,
}

/// The groups that are open, and how deep they are together.
struct Open {
    groups: Vec<Group>,
    depth: usize,
}

impl Open {
    fn new() -> Self {
        Self { groups: vec![Group::default()], depth: 0 }
    }

    fn step(&mut self, kept: bool) {
        if let Some(group) = self.groups.last_mut() {
            *(if kept { &mut group.kept } else { &mut group.chain }) += 1;
            self.depth += 1;
        }
    }

    fn open(&mut self, case: bool) {
        self.step(false);
        self.groups.push(Group { case, ..Group::default() });
    }

    fn next(&mut self) {
        if let Some(group) = self.groups.last_mut() {
            self.depth -= std::mem::take(&mut group.chain);
        }
    }

    fn close(&mut self) {
        // What closes nothing is for the parser to complain about.
        if self.groups.len() > 1
            && let Some(Group { chain, kept, .. }) = self.groups.pop()
        {
            self.depth -= chain + kept;
        }
    }

    fn in_case(&self) -> bool {
        self.groups.last().is_some_and(|group| group.case)
    }
}

/// Refuses statements that nest too deep, at the place where they do.
pub(super) fn check(tokens: &[TokenWithSpan]) -> Result<(), SqlError> {
    let mut open = Open::new();
    let mut named = 0;
    let mut after_as = false;
    for TokenWithSpan { token, span } in tokens {
        if matches!(token, Token::Whitespace(_)) {
            continue;
        }
        let begins_named = matches!(token, Token::Word(word) if word.keyword == Keyword::VIEW);
        named += usize::from(begins_named || after_as && *token == Token::LParen);
        after_as = matches!(token, Token::Word(word) if word.keyword == Keyword::AS);
        match token {
            Token::EOF => {}
            Token::SemiColon => open = Open::new(),
            Token::Comma => open.next(),
            Token::Word(word) => match word.keyword {
                Keyword::NoKeyword => {}
                Keyword::WHEN if open.in_case() => open.next(),
                Keyword::END if open.in_case() => open.close(),
                Keyword::CASE => open.open(true),
                Keyword::UNION | Keyword::EXCEPT | Keyword::INTERSECT | Keyword::MINUS => open.step(true),
                _ => open.step(false),
            },
            Token::Number(..)
            | Token::SingleQuotedString(_)
            | Token::DoubleQuotedString(_)
            | Token::EscapedStringLiteral(_) => {}
            Token::LParen | Token::LBracket | Token::LBrace => open.open(false),
            Token::RParen | Token::RBracket | Token::RBrace => open.close(),
            Token::Lt => open.step(true),
            _ => open.step(false),
        }
        if open.depth > DEEPEST {
            return Err(SqlError::at(
                format!(
                    "the statement nests deeper than {DEEPEST} levels here; each bracket is one, and each operator of a \
                     chain. Take it apart, or write IN (...) for many values"
                ),
                Place::of(*span),
            ));
        }
        if named > MOST_NAMED {
            let message =
                format!("there are more than {MOST_NAMED} views and queries of WITH; take the pipeline apart");
            return Err(SqlError::at(message, Place::of(*span)));
        }
    }
    Ok(())
}

/// How many parts an expression has.
pub(super) fn size(expr: &Expr) -> Result<usize, DataFusionError> {
    let mut parts = 0;
    expr.apply(|_| {
        parts += 1;
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(parts)
}

/// Refuses an expression that has become too large by what its columns stand for.
pub(super) fn check_size(parts: usize) -> Result<(), DataFusionError> {
    if parts > LARGEST {
        return Err(DataFusionError::Plan(format!(
            "an expression has more than {LARGEST} parts once the views and subqueries that it uses are put into it; \
             compute less in each of them"
        )));
    }
    Ok(())
}

/// Refuses an expression that has become too deep by what its columns stand for.
pub(super) fn check_expr(expr: &Expr) -> Result<(), SqlError> {
    let mut deepest = Deepest { depth: 0, found: 0 };
    expr.visit(&mut deepest)?;
    if deepest.found > DEEPEST {
        return Err(SqlError::new(format!(
            "an expression nests deeper than {DEEPEST} levels once the views and subqueries that it uses are put into it; \
             compute less in each of them"
        )));
    }
    Ok(())
}

struct Deepest {
    depth: usize,
    found: usize,
}

impl<'n> TreeNodeVisitor<'n> for Deepest {
    type Node = Expr;

    fn f_down(&mut self, _: &'n Expr) -> Result<TreeNodeRecursion, DataFusionError> {
        self.depth += 1;
        self.found = self.found.max(self.depth);
        Ok(TreeNodeRecursion::Continue)
    }

    fn f_up(&mut self, _: &'n Expr) -> Result<TreeNodeRecursion, DataFusionError> {
        self.depth -= 1;
        Ok(TreeNodeRecursion::Continue)
    }
}
