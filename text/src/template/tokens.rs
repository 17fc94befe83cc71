//! A conversation as token ids, with control tokens from the template's own text only.
//!
//! The template runs twice, on the messages as they are and on marked ones. If the marked text without its marks is the
//! plain text, every character's origin is known. If not, the template took message text apart in a way that is not
//! followed; then the plain text is used if no message has a character with which a marker begins or ends, and else
//! the request is refused. Not here: how markers are looked for ([`crate::tokenizer`]).

use std::collections::HashSet;

use super::marks::{self, Marked};
use super::{ChatRequest, ChatTemplate, Inputs};
use crate::error::{Result, TextError};
use crate::tokenizer::{Markers, TokenId, Tokenizer};

impl ChatTemplate {
    /// The conversation as the tokens that the model goes on from: with the BOS that the template wrote, or one if it
    /// wrote none and the model wants one.
    ///
    /// # Errors
    /// As [`Self::render`]; also where it cannot be told which markers in the text are the template's own.
    pub fn render_tokens(&self, tokenizer: &Tokenizer, request: &ChatRequest) -> Result<Vec<TokenId>> {
        let markers = tokenizer.markers_of(&self.source);
        let text = self.render_marked(tokenizer, &markers, request)?;
        let ids = tokenizer.encode_marked(&text.text, &text.user, &markers);
        Ok(with_one_bos(tokenizer, ids))
    }

    fn render_marked(&self, tokenizer: &Tokenizer, markers: &Markers, request: &ChatRequest) -> Result<Marked> {
        let inputs = Inputs::of(request, &marks::sanitize);
        let plain = self.render_inputs(request, &inputs)?;
        let has_special = |text: &str| tokenizer.has_special(text);
        let marked = Inputs::of(request, &|value| marks::mark(value, &has_special));
        // Failing on marked messages only is one more way of not following them.
        let followed = self.render_inputs(request, &marked).ok().and_then(|text| Marked::read(&text));
        if let Some(followed) = followed.filter(|followed| followed.text == plain) {
            return Ok(followed);
        }
        let edges: HashSet<char> = tokenizer.edges_of(markers);
        let mut has_edge = false;
        inputs.for_each_text(&mut |text| has_edge |= text.contains(|symbol| edges.contains(&symbol)));
        if has_edge { Err(TextError::TemplateUntracked) } else { Ok(Marked { text: plain, user: Vec::new() }) }
    }
}

/// At most one BOS in front, and one where the model wants it.
fn with_one_bos(tokenizer: &Tokenizer, ids: Vec<TokenId>) -> Vec<TokenId> {
    let Some(bos) = tokenizer.bos() else { return ids };
    let written = ids.iter().take_while(|&&id| id == bos).count();
    let kept = if written == 0 && tokenizer.adds_bos() { 1 } else { written.min(1) };
    [vec![bos; kept], ids[written..].to_vec()].concat()
}
