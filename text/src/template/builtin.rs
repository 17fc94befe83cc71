//! Templates for files that have none, chosen by name only: the published turn formats, without tools.

/// A built-in template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Builtin {
    /// `<|im_start|>role … <|im_end|>`.
    ChatMl,
    /// `<start_of_turn>user … <end_of_turn>`, a system message put before the first user message.
    Gemma,
    /// `[INST] … [/INST]`, a system message put before the first user message.
    Llama2,
    /// `<|start_header_id|>role<|end_header_id|> … <|eot_id|>`.
    Llama3,
}

impl Builtin {
    /// All of them with the names by which they are chosen.
    pub const ALL: [(&'static str, Builtin); 4] = [
        ("chatml", Builtin::ChatMl),
        ("gemma", Builtin::Gemma),
        ("llama2", Builtin::Llama2),
        ("llama3", Builtin::Llama3),
    ];

    /// The template of this name.
    pub fn find(name: &str) -> Option<Builtin> {
        Self::ALL.iter().find(|(known, _)| *known == name).map(|&(_, template)| template)
    }

    /// Its source, for [`super::ChatTemplate::for_tokenizer`].
    pub fn source(self) -> &'static str {
        match self {
            Builtin::ChatMl => CHAT_ML,
            Builtin::Gemma => GEMMA,
            Builtin::Llama2 => LLAMA2,
            Builtin::Llama3 => LLAMA3,
        }
    }
}

const CHAT_ML: &str = "\
{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}";

const GEMMA: &str = "\
{{- bos_token -}}
{%- set ns = namespace(system='') -%}
{%- for message in messages -%}
{%- if message.role == 'system' -%}
{%- set ns.system = ns.system + message.content + '\\n\\n' -%}
{%- else -%}
{%- set role = 'model' if message.role == 'assistant' else message.role -%}
{{- '<start_of_turn>' + role + '\\n' + ns.system + (message.content | trim) + '<end_of_turn>\\n' -}}
{%- set ns.system = '' -%}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<start_of_turn>model\\n' -}}{%- endif -%}";

const LLAMA2: &str = "\
{%- set ns = namespace(system='') -%}
{%- for message in messages -%}
{%- if message.role == 'system' -%}
{%- set ns.system = '<<SYS>>\\n' + message.content + '\\n<</SYS>>\\n\\n' -%}
{%- elif message.role == 'user' -%}
{{- bos_token + '[INST] ' + ns.system + (message.content | trim) + ' [/INST]' -}}
{%- set ns.system = '' -%}
{%- else -%}
{{- ' ' + (message.content | trim) + ' ' + eos_token -}}
{%- endif -%}
{%- endfor -%}";

const LLAMA3: &str = "\
{{- bos_token -}}
{%- for message in messages -%}
{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + (message.content | trim) + '<|eot_id|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}{%- endif -%}";
