//! The messages of a chat, and the file that they are kept in: `{"messages": [{"role": …, "content": …}, …]}`, the form
//! that APIs of chat models have. Not here: how a model wants them written (`text::template`).

use serde_json::{Value, json};

/// A conversation: a system prompt perhaps, then the user and the model in turns. The user's last message may not be
/// answered yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conversation {
    system: Option<String>,
    turns: Vec<Turn>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Turn {
    user: String,
    answer: Option<String>,
}

impl Conversation {
    /// An empty one.
    pub fn new(system: Option<String>) -> Self {
        Conversation { system, turns: Vec::new() }
    }

    /// The system prompt.
    pub fn system(&self) -> Option<&str> {
        self.system.as_deref()
    }

    /// Sets the system prompt, also of what was said before; an empty one is none.
    pub fn set_system(&mut self, text: String) {
        self.system = Some(text).filter(|text| !text.is_empty());
    }

    /// Forgets what was said.
    pub fn reset(&mut self) {
        self.turns.clear();
    }

    /// Number of the user's messages.
    pub fn turns(&self) -> usize {
        self.turns.len()
    }

    /// Adds a message of the user, in place of one that was not answered.
    pub fn ask(&mut self, text: String) {
        if self.turns.last().is_some_and(|turn| turn.answer.is_none()) {
            self.turns.pop();
        }
        self.turns.push(Turn { user: text, answer: None });
    }

    /// Adds the answer.
    pub fn answer(&mut self, text: String) {
        if let Some(turn) = self.turns.last_mut() {
            turn.answer = Some(text);
        }
    }

    /// Takes the last answer back, if there is one. False if there is no message to answer.
    pub fn unanswer(&mut self) -> bool {
        match self.turns.last_mut() {
            Some(turn) => {
                turn.answer = None;
                true
            }
            None => false,
        }
    }

    /// The messages as templates take them.
    pub fn messages(&self) -> Vec<Value> {
        let message = |role: &str, content: &str| json!({"role": role, "content": content});
        let mut messages: Vec<Value> = self.system.iter().map(|text| message("system", text)).collect();
        for turn in &self.turns {
            messages.push(message("user", &turn.user));
            messages.extend(turn.answer.iter().map(|text| message("assistant", text)));
        }
        messages
    }

    /// What is written to a file.
    pub fn to_json(&self) -> String {
        format!("{:#}\n", json!({"messages": self.messages()}))
    }

    /// Reads what was written. Errors: what is wrong with it.
    pub fn from_json(text: &str) -> Result<Self, String> {
        let file: Value = serde_json::from_str(text).map_err(|error| format!("it is no JSON: {error}"))?;
        let messages = file["messages"].as_array().ok_or("it has no list `messages`")?;
        let mut conversation = Conversation::default();
        for (index, message) in messages.iter().enumerate() {
            let wrong = |what: &str| format!("message {index} {what}");
            let role = message["role"].as_str().ok_or_else(|| wrong("has no role"))?;
            let content = message["content"].as_str().ok_or_else(|| wrong("has no text `content`"))?;
            conversation.add(role, content).map_err(|what| wrong(&what))?;
        }
        Ok(conversation)
    }

    fn add(&mut self, role: &str, content: &str) -> Result<(), String> {
        let is_open = self.turns.last().is_some_and(|turn| turn.answer.is_none());
        match role {
            "system" if self.turns.is_empty() && self.system.is_none() => self.set_system(content.into()),
            "user" if !is_open => self.ask(content.into()),
            "assistant" if is_open => self.answer(content.into()),
            "system" | "user" | "assistant" => {
                return Err(format!(
                    "is of the role `{role}`, which is not in its place: an optional system message, \
                     then user and assistant in turns"
                ));
            }
            _ => return Err(format!("is of the role `{role}`; known are system, user and assistant")),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_saved_is_loaded() {
        let mut conversation = Conversation::new(Some("Be brief.".into()));
        conversation.ask("日本 \"quoted\"\n".into());
        conversation.answer(String::new());
        conversation.ask("open".into());
        assert_eq!(Conversation::from_json(&conversation.to_json()), Ok(conversation));
        assert_eq!(Conversation::from_json("{\"messages\": []}"), Ok(Conversation::default()));
    }

    #[test]
    fn files_of_another_kind_are_refused() {
        for (text, word) in [
            ("{", "no JSON"),
            ("[]", "`messages`"),
            ("{\"messages\": {}}", "`messages`"),
            ("{\"messages\": [{\"content\": \"x\"}]}", "message 0 has no role"),
            ("{\"messages\": [{\"role\": \"user\", \"content\": null}]}", "`content`"),
            ("{\"messages\": [{\"role\": \"tool\", \"content\": \"x\"}]}", "`tool`"),
            ("{\"messages\": [{\"role\": \"assistant\", \"content\": \"x\"}]}", "not in its place"),
        ] {
            let error = Conversation::from_json(text).expect_err(text);
            assert!(error.contains(word), "{error}");
        }
        let twice = r#"{"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]}"#;
        assert!(Conversation::from_json(twice).expect_err("refused").starts_with("message 1"));
    }

    #[test]
    fn a_message_without_answer_is_replaced_and_can_be_answered_again() {
        let mut conversation = Conversation::default();
        assert!(!conversation.unanswer());
        conversation.ask("too long".into());
        conversation.ask("short".into());
        conversation.answer("yes".into());
        assert_eq!(conversation.messages().len(), 2);
        assert!(conversation.unanswer());
        assert_eq!(conversation.messages(), [json!({"role": "user", "content": "short"})]);
    }
}
