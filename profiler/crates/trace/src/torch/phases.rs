//! Phases of a program: of a language model that answers, or of a model that learns.

use super::pairs::EVALUATE;
use crate::steps::StepPhase;

/// What a program does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WorkPhase {
    /// A language model reads prompts.
    Prefill,
    /// A language model gives one more token.
    Decode,
    /// Both at once, for different requests.
    Mixed,
    /// Forward pass.
    Forward,
    /// Backward pass.
    Backward,
    /// Optimizer.
    Optimizer,
}

/// Words that may stand beside `decode` in a note; images are decoded, too.
const BESIDE_DECODE: [&str; 8] = [
    "decode",
    "decoding",
    "step",
    "phase",
    "forward",
    "pass",
    "iteration",
    "batch",
];

impl WorkPhase {
    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
            Self::Mixed => "mixed",
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::Optimizer => "optimizer",
        }
    }

    /// Whether it is one of a language model that answers.
    pub(super) fn is_of_answers(self) -> bool {
        matches!(self, Self::Prefill | Self::Decode | Self::Mixed)
    }

    fn of_parts(has_prefill: bool, has_decode: bool) -> Option<Self> {
        match (has_prefill, has_decode) {
            (true, true) => Some(Self::Mixed),
            (true, false) => Some(Self::Prefill),
            (false, true) => Some(Self::Decode),
            (false, false) => None,
        }
    }

    /// The phase that a note stands for.
    pub(super) fn of_note(name: &str) -> Option<Self> {
        if let Some(known) = of_vllm(name).or_else(|| of_sglang(name)) {
            return known;
        }
        of_words(name).or_else(|| match StepPhase::of(name)? {
            StepPhase::Loader => None,
            StepPhase::Forward => Some(Self::Forward),
            StepPhase::Backward => Some(Self::Backward),
            StepPhase::Optimizer => Some(Self::Optimizer),
        })
    }

    /// The phase that an operator stands for.
    pub(super) fn of_operator(name: &str) -> Option<Self> {
        name.starts_with(EVALUATE).then_some(Self::Backward)
    }
}

/// vLLM's `execute_context_1(512)_generation_8(8)`, or `execute_520_context_1(...`: requests that
/// read their prompt, and that go on. `None`: it is another note.
fn of_vllm(name: &str) -> Option<Option<WorkPhase>> {
    let rest = name.strip_prefix("execute_")?;
    let count = |word: &str| {
        let (_, behind) = rest.split_once(word)?;
        let (count, _) = behind.split_once('(')?;
        count.parse::<u64>().ok()
    };
    let (context, generation) = (count("context_")?, count("generation_")?);
    Some(WorkPhase::of_parts(context > 0, generation > 0))
}

/// SGLang's `step[EXTEND bs=15 toks=15360]`. `None`: it is another note.
fn of_sglang(name: &str) -> Option<Option<WorkPhase>> {
    let rest = name.strip_prefix("step[")?;
    let mode = rest.split([' ', ']']).next().unwrap_or_default();
    Some(match mode {
        "EXTEND" | "PREFILL" | "SPLIT_PREFILL" => Some(WorkPhase::Prefill),
        "DECODE" => Some(WorkPhase::Decode),
        "MIXED" => Some(WorkPhase::Mixed),
        _ => None,
    })
}

/// Notes of others: `## prefill ##`, `decode_step 7`.
fn of_words(name: &str) -> Option<WorkPhase> {
    let words = || {
        let words = name.split(|c: char| !c.is_ascii_alphabetic());
        words
            .filter(|word| !word.is_empty())
            .map(str::to_ascii_lowercase)
    };
    let has_prefill = words().any(|word| word == "prefill");
    let has_decode = words().any(|word| word == "decode" || word == "decoding");
    let is_decode = has_prefill || words().all(|word| BESIDE_DECODE.contains(&&*word));
    WorkPhase::of_parts(has_prefill, has_decode && is_decode)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names as vLLM and SGLang write them, and as people do.
    #[test]
    fn notes_stand_for_phases() {
        for (name, phase) in [
            ("execute_context_2(512)_generation_0(0)", Some("prefill")),
            ("execute_context_0(0)_generation_8(8)", Some("decode")),
            (
                "execute_8192_context_9(sq8155sk8430sqsq1sqsk2)_generation_37(sq37sk3sqsq3sqsk3)",
                Some("mixed"),
            ),
            ("execute_0_context_0(sq0)_generation_0(sq0)", None),
            ("execute_context_x(1)_generation_1(1)", None),
            ("step[EXTEND bs=15 toks=15360]", Some("prefill")),
            ("step[DECODE bs=32]", Some("decode")),
            ("step[IDLE bs=0]", None),
            ("## prefill ##", Some("prefill")),
            ("Decode_step 7", Some("decode")),
            ("prefill+decode", Some("mixed")),
            ("vae.decode", None),
            ("decode_jpeg", None),
            ("## forward ##", Some("forward")),
            ("Optimizer.step#SGD.step", Some("optimizer")),
            ("ProfilerStep#3", None),
            ("", None),
        ] {
            let found = WorkPhase::of_note(name).map(WorkPhase::word);
            assert_eq!(found, phase, "{name}");
        }
        let span = "autograd::engine::evaluate_function: MmBackward0";
        assert_eq!(WorkPhase::of_operator(span), Some(WorkPhase::Backward));
        assert_eq!(WorkPhase::of_operator("aten::decode"), None);
    }
}
