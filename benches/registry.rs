//! What the registry costs an application of a thousand executors, beside one of ten.
//!
//! One epoch of an operator is run by as many tasks as there are: each is granted, tells its holders and
//! ends; then all are granted once more, as at a restart. Logs of another operator ride in frames to all agents, each of
//! which says so. Then nobody is heard of for some seconds, and all come back; and half of the executors are let go and end.

use std::hint::black_box;
use std::time::{Duration, Instant};

use clonos::agent::code::Use;
use clonos::agent::protocol::{AgentInfo, Beginning, Ending, Left, OpenTask, Sent};
use clonos::agent::registry::{Granted, Registry};
use clonos::id::{AgentId, Epoch, Generation, Partition, TaskId};
use clonos::task::Summary;

/// Agents beat twice a second.
const BEAT_MS: u64 = 500;
const OPERATORS: usize = 10;
/// Logs that all agents take in.
const RIDING: u32 = 100;

fn main() {
    println!(
        "| agents | tasks | grant | grant again | holding | close | visible | 1 s of all beats | all fall silent | all are back | half are gone | bytes per task |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|");
    for (agents, tasks) in [(10, 1_000), (1_000, 100_000)] {
        Cluster::new(agents).measure(tasks);
    }
}

struct Cluster {
    registry: Registry,
    agents: u64,
    now_ms: u64,
}

impl Cluster {
    fn new(agents: u64) -> Self {
        let mut registry = Registry::new();
        for id in 0..agents {
            let (addr, host) = (format!("10.0.{}.{}:41234", id / 250, id % 250), format!("node-{id}"));
            registry.register(
                AgentInfo { id: AgentId(id), addr, host, driver: id == 0 },
                &format!("e{id}"),
                1,
            );
        }
        Self { registry, agents, now_ms: 1 }
    }

    fn measure(&mut self, tasks: u32) {
        let begun = resident();
        let mut generations = Vec::new();
        let grant = self.each(tasks, |cluster, task, number| {
            generations.push(cluster.grant(task, number, 1));
        });
        let holding = self.each(tasks, |cluster, task, number| {
            let generation = generation_of(&generations, number);
            let holders = [cluster.agent_of(number), cluster.agent_of(number + 1)];
            let sent = Sent { by: holders[0], number: number.into() };
            cluster.registry.holding(task, generation, &holders, None, true, sent).expect("newest");
        });
        let close = self.each(tasks, |cluster, task, number| {
            let generation = generation_of(&generations, number);
            let left = Left { by: cluster.agent_of(number), lost: false, end: None };
            let (summary, ending) = (Summary::default(), Ending { done: true, ..Ending::default() });
            cluster.registry.closed(task, generation, &summary, ending, left).expect("newest");
        });
        let bytes = resident().saturating_sub(begun) / u64::from(tasks);
        let again = self.each(tasks, |cluster, task, number| {
            black_box(cluster.grant(task, number, 2));
        });
        let visible = self.visible();
        let beats = self.beats();
        let (silent, back) = self.silence();
        let gone = self.gone();
        println!(
            "| {} | {tasks} | {:.1} µs | {:.1} µs | {:.1} µs | {:.1} µs | {:.1} µs | {:.2} % of a core | {} | {} | {} | {bytes} |",
            self.agents,
            micros(grant, tasks),
            micros(again, tasks),
            micros(holding, tasks),
            micros(close, tasks),
            micros(visible, RIDING) / self.agents as f64,
            beats.as_secs_f64() * 100.0,
            millis(silent),
            millis(back),
            millis(gone),
        );
    }

    /// Does something for each task, in turn for all operators; agents beat meanwhile, at nobody's expense.
    fn each(&mut self, tasks: u32, mut work: impl FnMut(&mut Self, &TaskId, u32)) -> Duration {
        let names: Vec<_> = (0..tasks).map(name).collect();
        let begun = Instant::now();
        for (number, task) in (0..).zip(&names) {
            work(self, task, number);
        }
        begun.elapsed()
    }

    fn grant(&mut self, task: &TaskId, number: u32, run: u64) -> Generation {
        let open = OpenTask {
            task: task.clone(),
            used: Use::default(),
            execution: None,
            app: 7,
            stage: u32::try_from(run).unwrap_or_default(),
            attempt: run << 32 | u64::from(number),
            worker: 1,
            inside: false,
            stamp: 0,
            of_rdd: None,
        };
        let agent = self.agent_of(number);
        match self.registry.grant(&open, Sent { by: agent, number: run }, 0, Some(10_000), self.now_ms) {
            Granted::Yes(grant) => grant.generation,
            _ => unreachable!("nobody else has it open"),
        }
    }

    /// Every agent says that something visible depends on logs that it has taken in.
    fn visible(&mut self) -> Duration {
        let tasks: Vec<_> =
            (0..RIDING).map(|number| TaskId { operator: "rides".into(), ..name(number * 10) }).collect();
        let granted = tasks.iter().zip(0..).map(|(task, number)| (task.clone(), self.grant(task, number, 1)));
        let logs: Vec<_> = granted.map(|(task, by)| (task, by, Beginning::default())).collect();
        let begun = Instant::now();
        for id in 0..self.agents {
            let holders = [id, (id + 1) % self.agents].map(AgentId);
            self.registry.visible(&logs, &holders).expect("newest");
        }
        begun.elapsed()
    }

    /// All beats of ten seconds, and what agents ask with them; per second.
    fn beats(&mut self) -> Duration {
        let begun = Instant::now();
        for _ in 0..20 {
            self.now_ms += BEAT_MS;
            for id in (0..self.agents).map(AgentId) {
                self.registry.look_at_clock(self.now_ms);
                black_box(self.registry.heartbeat(id, 0, self.now_ms));
                black_box(self.registry.repairs(id, 120_000, self.now_ms));
            }
        }
        begun.elapsed() / 10
    }

    /// Nobody is heard of for five seconds, then everybody: what both cost.
    fn silence(&mut self) -> (Duration, Duration) {
        let begun = Instant::now();
        self.wait(0);
        let silent = begun.elapsed();
        let begun = Instant::now();
        for id in (0..self.agents).map(AgentId) {
            black_box(self.registry.heartbeat(id, 0, self.now_ms));
        }
        (silent, begun.elapsed())
    }

    /// Spark lets half of the executors go, and they end.
    fn gone(&mut self) -> Duration {
        let executors = |ids: std::ops::Range<u64>| ids.map(|id| format!("e{id}")).collect();
        self.registry.executors_are(executors(0..self.agents));
        let begun = Instant::now();
        self.registry.executors_are(executors(0..self.agents / 2));
        self.wait(self.agents / 2);
        begun.elapsed()
    }

    /// Five seconds, in which the first agents beat.
    fn wait(&mut self, beating: u64) {
        for _ in 0..10 {
            self.now_ms += BEAT_MS;
            self.registry.look_at_clock(self.now_ms);
            for id in (0..beating).map(AgentId) {
                self.registry.heartbeat(id, 0, self.now_ms);
            }
        }
    }

    fn agent_of(&self, number: u32) -> AgentId {
        AgentId(u64::from(number) % self.agents)
    }
}

fn generation_of(generations: &[Generation], number: u32) -> Generation {
    generations.get(number as usize).copied().unwrap_or(Generation::NONE)
}

fn name(number: u32) -> TaskId {
    let operator = number as usize % OPERATORS;
    TaskId {
        query: "4b1d5a30-6c4e-4b4b-9a53-2d1f7f3a1c11".into(),
        operator: format!("package.module.function_{operator}").into(),
        epoch: Epoch::Batch(3),
        partition: Partition(number / 10),
    }
}

fn millis(all: Duration) -> String {
    format!("{:.1} ms", all.as_secs_f64() * 1e3)
}

fn micros(all: Duration, tasks: u32) -> f64 {
    all.as_secs_f64() * 1e6 / f64::from(tasks)
}

/// Bytes of this process in memory, as Linux tells it.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or_default() * 4096
}
