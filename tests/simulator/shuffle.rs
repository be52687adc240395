//! What Spark's shuffle keeps of finished tasks, and in which order it hands it out.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use crate::dice::Dice;

/// A finished task's output.
#[derive(Debug, Clone)]
pub(crate) struct Output {
    pub(crate) host: usize,
    pub(crate) frames: Vec<Vec<Bytes>>,
}

/// Frames for a consumer: those of one sender in order, senders in any, whole or interleaved.
pub(crate) fn inputs(
    dice: &mut Dice,
    outputs: &BTreeMap<(usize, usize), Output>,
    senders: usize,
    stage: usize,
    partition: usize,
) -> VecDeque<(usize, Bytes)> {
    let mut inputs = VecDeque::new();
    if stage == 0 {
        return inputs;
    }
    let mut queues: Vec<VecDeque<(usize, Bytes)>> = (0..senders)
        .filter_map(|sender| outputs.get(&(stage - 1, sender)))
        .map(|output| output.frames[partition].iter().map(|frame| (output.host, frame.clone())).collect())
        .collect();
    let interleaved = dice.chance(50);
    while !queues.is_empty() {
        let number = dice.below(queues.len());
        inputs.extend(queues[number].pop_front());
        while !interleaved && !queues[number].is_empty() {
            inputs.extend(queues[number].pop_front());
        }
        if queues[number].is_empty() {
            queues.remove(number);
        }
    }
    inputs
}
