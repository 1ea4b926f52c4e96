//! A kernel for tests, which gives prepared answers, and machines with cards of xe.

use super::{
    DeviceOptions, DeviceSamplers,
    xe_abi::{Card, Chain, Driver, QUERY_EU_STALL, QUERY_GT_LIST, SetProperty, Stream, address},
    xe_cards,
};
use rustix::io::Errno;
use std::{
    collections::{BTreeMap, VecDeque},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

/// What a read brings; after the last one, there is nothing to read.
#[derive(Clone)]
pub(super) enum ReadStep {
    Bytes(Vec<u8>),
    Fails(Errno),
    /// Nothing, for so long.
    Silence(Duration),
}

/// A card of a kernel that gives prepared answers.
#[derive(Clone, Default)]
pub(super) struct FakeCard {
    pub(super) gts: Vec<FakeGt>,
    /// Answers to queries by number.
    answers: BTreeMap<u32, Result<Vec<u8>, Errno>>,
    /// Results of opening a stream by GT, in order; afterwards, streams are silent.
    streams: BTreeMap<u64, VecDeque<Result<Vec<ReadStep>, Errno>>>,
}

#[derive(Clone, Copy)]
pub(super) struct FakeGt {
    pub(super) kind: u16,
    pub(super) id: u16,
    pub(super) version: (u16, u16),
}

#[derive(Default)]
pub(super) struct FakeState {
    pub(super) cards: BTreeMap<PathBuf, FakeCard>,
    /// Properties of the streams that were asked for.
    pub(super) asked: Vec<Vec<SetProperty>>,
    pub(super) enabled: usize,
    pub(super) open: usize,
}

#[derive(Clone, Default)]
pub(super) struct Fake(pub(super) Arc<Mutex<FakeState>>);

impl Driver for Fake {
    fn open(&self, node: &Path) -> Result<Box<dyn Card>, Errno> {
        let known = self.0.lock().unwrap().cards.contains_key(node);
        let (fake, node) = (self.clone(), node.to_owned());
        known.then_some(()).ok_or(Errno::NOENT)?;
        Ok(Box::new(OpenCard { fake, node }))
    }
}

struct OpenCard {
    fake: Fake,
    node: PathBuf,
}

impl Card for OpenCard {
    fn query(&self, query: u32, data: &mut [u8]) -> Result<u32, Errno> {
        let state = self.fake.0.lock().unwrap();
        let answer = state.cards[&self.node].answers.get(&query);
        let answer = answer.cloned().unwrap_or(Err(Errno::INVAL))?;
        if !data.is_empty() {
            if data.len() != answer.len() {
                return Err(Errno::INVAL);
            }
            data.copy_from_slice(&answer);
        }
        Ok(answer.len() as u32)
    }

    fn open_stream(&self, chain: &Chain) -> Result<Box<dyn Stream>, Errno> {
        // As the kernel does: from the first, along the pointers.
        let mut next = chain.head();
        let mut properties = Vec::new();
        while next != 0 {
            let found = chain.properties().iter().find(|p| address(*p) == next);
            let found = found.expect("a pointer to a property").clone();
            next = found.next;
            properties.push(found);
            assert!(properties.len() <= 5);
        }
        let gt = properties.iter().find(|p| p.property == 1).unwrap().value;
        let mut state = self.fake.0.lock().unwrap();
        state.asked.push(properties);
        let card = state.cards.get_mut(&self.node).unwrap();
        let script = card.streams.get_mut(&gt).and_then(VecDeque::pop_front);
        let steps = script.unwrap_or(Ok(Vec::new()))?;
        state.open += 1;
        Ok(Box::new(OpenStream {
            fake: self.fake.clone(),
            steps: Mutex::new(steps.into()),
            enabled: Mutex::new(false),
        }))
    }
}

struct OpenStream {
    fake: Fake,
    steps: Mutex<VecDeque<ReadStep>>,
    enabled: Mutex<bool>,
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.fake.0.lock().unwrap().open -= 1;
    }
}

impl Stream for OpenStream {
    fn enable(&self) -> Result<(), Errno> {
        *self.enabled.lock().unwrap() = true;
        self.fake.0.lock().unwrap().enabled += 1;
        Ok(())
    }

    fn wait(&self, time: Duration) -> Result<(), Errno> {
        let silent = match self.steps.lock().unwrap().front() {
            Some(ReadStep::Silence(silence)) => *silence,
            None => time,
            Some(_) => Duration::ZERO,
        };
        std::thread::sleep(silent.min(time));
        Ok(())
    }

    fn read(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        assert!(*self.enabled.lock().unwrap(), "read before enable");
        let mut steps = self.steps.lock().unwrap();
        match steps.pop_front() {
            Some(ReadStep::Bytes(bytes)) => {
                let (now, later) = bytes.split_at(bytes.len().min(buffer.len() / 64 * 64));
                buffer[..now.len()].copy_from_slice(now);
                if !later.is_empty() {
                    steps.push_front(ReadStep::Bytes(later.to_vec()));
                }
                Ok(now.len())
            }
            Some(ReadStep::Fails(error)) => Err(error),
            Some(ReadStep::Silence(_)) | None => Err(Errno::AGAIN),
        }
    }
}

/// As xe answers.
pub(super) fn eu_stall_answer(record_size: u64, rates: &[u64]) -> Vec<u8> {
    let mut words = vec![
        0,
        1,
        record_size,
        512 << 10,
        0,
        0,
        0,
        0,
        0,
        rates.len() as u64,
    ];
    words.extend(rates);
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

pub(super) fn gt_answer(gts: &[FakeGt]) -> Vec<u8> {
    let mut bytes = (gts.len() as u32).to_le_bytes().to_vec();
    bytes.extend([0; 4]);
    for gt in gts {
        let mut one = [0; 96];
        one[0..2].copy_from_slice(&gt.kind.to_le_bytes());
        one[4..6].copy_from_slice(&gt.id.to_le_bytes());
        one[12..16].copy_from_slice(&19_200_000_u32.to_le_bytes());
        one[32..34].copy_from_slice(&gt.version.0.to_le_bytes());
        one[34..36].copy_from_slice(&gt.version.1.to_le_bytes());
        bytes.extend(one);
    }
    bytes
}

pub(super) const RATES: [u64; 7] = [251, 502, 753, 1004, 1255, 1506, 1757];

impl FakeCard {
    /// A Battlemage with a GT of execution units and one for media.
    pub(super) fn usual() -> Self {
        let gts = [(0, 0, (20, 1)), (1, 1, (13, 1))];
        Self::with(&gts.map(|(kind, id, version)| FakeGt { kind, id, version }))
    }

    pub(super) fn with(gts: &[FakeGt]) -> Self {
        Self {
            gts: gts.to_vec(),
            answers: BTreeMap::from([
                (QUERY_EU_STALL, Ok(eu_stall_answer(64, &RATES))),
                (QUERY_GT_LIST, Ok(gt_answer(gts))),
            ]),
            streams: BTreeMap::new(),
        }
    }

    pub(super) fn stream(mut self, gt: u64, script: Result<Vec<ReadStep>, Errno>) -> Self {
        self.streams.entry(gt).or_default().push_back(script);
        self
    }

    pub(super) fn answer(mut self, query: u32, answer: Result<Vec<u8>, Errno>) -> Self {
        self.answers.insert(query, answer);
        self
    }
}

/// A machine of cards.
pub(super) struct FakeMachine {
    pub(super) root: tempfile::TempDir,
    pub(super) fake: Fake,
}

impl FakeMachine {
    /// Cards by PCI device id.
    pub(super) fn new(cards: Vec<(&str, FakeCard)>) -> Self {
        let root = tempfile::tempdir().unwrap();
        let fake = Fake::default();
        for ((id, card), index) in cards.into_iter().zip(0..) {
            let node = format!("renderD{}", 128 + index);
            let at = format!("0000:{index:02x}:00.0");
            xe_cards::tests::make(root.path(), &node, &at, "xe", id);
            let node = root.path().join("dev/dri").join(node);
            fake.0.lock().unwrap().cards.insert(node, card);
        }
        Self { root, fake }
    }

    pub(super) fn start(&self, options: &DeviceOptions) -> DeviceSamplers {
        DeviceSamplers::start_on(options, &self.fake, self.root.path()).unwrap()
    }
}
