//! The agent's process: started once per folder, gone when it is not needed any more.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use clonos::config::SessionConfig;
use clonos::edge::agent::process::{ensure_agent, run_executor_agent};
use clonos::edge::net::client::Client;

use crate::world::{World, append, eventually, open, open_as, task, text};

const FOLDER: &str = "CLONOS_TEST_PROCESS_FOLDER";
const WATCH: &str = "CLONOS_TEST_PROCESS_WATCH";

/// What a worker spawns, here this very program.
fn spawn(config: &SessionConfig, folder: &Path, watch: u32) -> Child {
    start(config, folder, watch, Command::new(std::env::current_exe().unwrap()))
}

fn start(config: &SessionConfig, folder: &Path, watch: u32, mut program: Command) -> Child {
    std::fs::write(folder.join("config"), config.to_bytes().unwrap()).unwrap();
    program
        .args(["process::agent_that_watches", "--exact", "--test-threads=1"])
        .env(FOLDER, folder)
        .env(WATCH, watch.to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// The child; does nothing when the tests run it.
#[test]
fn agent_that_watches() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return };
    let config = SessionConfig::from_bytes(&std::fs::read(folder.join("config")).unwrap()).unwrap();
    let watch = std::env::var(WATCH).unwrap().parse().unwrap();
    run_executor_agent(config, watch, &folder, String::new()).unwrap();
}

fn folder(world: &World, name: &str) -> PathBuf {
    let folder = world.folder.path().join(name);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
fn of_many_workers_one_starts_the_agent_and_all_use_it() {
    let world = World::new();
    let folder = folder(&world, "executor");
    let (spawned, children) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for partition in 0..8_u32 {
            let (world, folder, spawned, children) = (&world, &folder, &spawned, &children);
            scope.spawn(move || {
                let socket = ensure_agent(&world.config, folder, || {
                    spawned.fetch_add(1, Ordering::Relaxed);
                    children.lock().unwrap().push(spawn(&world.config, folder, std::process::id()));
                    Ok(|| false)
                });
                let mut worker = Client::connect(&world.config, &socket.unwrap()).unwrap();
                let opened = open(&mut worker, &task(partition), 1, u64::from(partition));
                append(&mut worker, opened.session, &text("a")).unwrap();
            });
        }
    });
    assert_eq!(spawned.load(Ordering::Relaxed), 1);
    for mut child in children.into_inner().unwrap() {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    // What it left behind does not hinder the next.
    let mut next = None;
    let socket = ensure_agent(&world.config, &folder, || {
        next = Some(spawn(&world.config, &folder, std::process::id()));
        Ok(|| false)
    });
    let mut worker = Client::connect(&world.config, &socket.unwrap()).unwrap();
    assert_eq!(open(&mut worker, &task(0), 1, 100).prior, [text("a")]);
    let mut next = next.expect("a new one was started");
    next.kill().unwrap();
    next.wait().unwrap();
}

#[test]
fn the_agent_goes_with_the_process_it_watches() {
    let world = World::new();
    let folder = folder(&world, "executor");
    let mut executor = Command::new("sleep").arg("60").spawn().unwrap();
    let mut agent = None;
    let socket = ensure_agent(&world.config, &folder, || {
        agent = Some(spawn(&world.config, &folder, executor.id()));
        Ok(|| false)
    })
    .unwrap();
    let mut agent = agent.unwrap();
    assert!(agent.try_wait().unwrap().is_none());
    executor.kill().unwrap();
    executor.wait().unwrap();
    eventually("the agent ends", || agent.try_wait().unwrap().is_some());
    assert!(agent.wait().unwrap().success());
    assert!(!socket.exists(), "its socket is removed");
}

#[test]
fn what_only_an_agent_has_whose_executor_ended_is_copied_before_it_goes() {
    let world = World::with(|config, _| config.sharing_depth = 0);
    let folder = folder(&world, "executor");
    let mut executor = Command::new("sleep").arg("60").spawn().unwrap();
    let mut agent = None;
    let socket = ensure_agent(&world.config, &folder, || {
        agent = Some(spawn(&world.config, &folder, executor.id()));
        Ok(|| false)
    })
    .unwrap();
    let mut worker = Client::connect(&world.config, &socket).unwrap();
    let opened = open(&mut worker, &task(0), 1, 1);
    append(&mut worker, opened.session, &text("a")).unwrap();
    drop(worker);
    executor.kill().unwrap();
    executor.wait().unwrap();
    let mut agent = agent.unwrap();
    eventually("the agent ends", || agent.try_wait().unwrap().is_some());
    let again = open(&mut world.worker(), &task(0), 1, 2);
    assert!(!again.lost && again.prior == [text("a")]);
}

#[test]
fn an_agent_may_open_as_many_files_as_its_system_allows() {
    let world = World::new();
    let folder = folder(&world, "executor");
    let mut agent = None;
    ensure_agent(&world.config, &folder, || {
        // Set by the shell from which Spark was started, say.
        let mut limited = Command::new("prlimit");
        limited.arg("--nofile=300:").arg(std::env::current_exe().unwrap());
        agent = Some(start(&world.config, &folder, std::process::id(), limited));
        Ok(|| false)
    })
    .unwrap();
    let mut agent = agent.unwrap();
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", agent.id())).unwrap();
    let files: Vec<&str> =
        limits.lines().find(|line| line.starts_with("Max open files")).unwrap().split_whitespace().collect();
    assert_eq!(files[3], files[4], "{limits}");
    assert_ne!(files[3], "300");
    agent.kill().unwrap();
    agent.wait().unwrap();
}

/// A library that lets syncs fail as soon as a file is there, for a process that is started with it.
fn failing_syncs(folder: &Path) -> PathBuf {
    let (source, library) = (folder.join("sync.c"), folder.join("sync.so"));
    let code = r#"
        #include <errno.h>
        #include <stdlib.h>
        #include <sys/syscall.h>
        #include <unistd.h>
        int fdatasync(int file) {
            if (access(getenv("CLONOS_TEST_SYNCS_FAIL"), F_OK) == 0) { errno = EIO; return -1; }
            return syscall(SYS_fdatasync, file);
        }
    "#;
    std::fs::write(&source, code).unwrap();
    let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status();
    assert!(built.unwrap().success());
    library
}

#[test]
fn an_agent_ends_after_a_failed_sync_and_another_starts() {
    let world = World::with(|config, folder| {
        config.sharing_depth = 0;
        config.checkpoint_dir = Some(folder.path().join("checkpoint").display().to_string());
    });
    let folder = folder(&world, "executor");
    let (library, fails) = (failing_syncs(world.folder.path()), world.folder.path().join("fails"));
    let agents = Mutex::new(Vec::new());
    let ensure = || {
        ensure_agent(&world.config, &folder, || {
            let mut program = Command::new(std::env::current_exe().unwrap());
            program.env("LD_PRELOAD", &library).env("CLONOS_TEST_SYNCS_FAIL", &fails);
            agents.lock().unwrap().push(start(&world.config, &folder, std::process::id(), program));
            Ok(|| false)
        })
        .unwrap()
    };
    let mut worker = Client::connect(&world.config, &ensure()).unwrap();
    let opened = open(&mut worker, &task(0), 1, 1);
    append(&mut worker, opened.session, &text("a")).unwrap();
    std::fs::write(&fails, "").unwrap();
    let failed = append(&mut worker, opened.session, &text("b")).unwrap_err();
    assert_eq!(failed.condition(), "POISONED", "{failed}");
    eventually("the agent ends", || agents.lock().unwrap()[0].try_wait().unwrap().is_some());
    assert!(!agents.lock().unwrap()[0].wait().unwrap().success());
    std::fs::remove_file(&fails).unwrap();
    let mut worker = Client::connect(&world.config, &ensure()).unwrap();
    let mut opened = None;
    eventually("the task can be opened again", || {
        opened = open_as(&mut worker, &task(0), 1, 2).ok();
        opened.is_some()
    });
    let opened = opened.unwrap();
    assert_eq!(opened.prior[0], text("a"));
    append(&mut worker, opened.session, &text("c")).unwrap();
    let mut agents = agents.into_inner().unwrap();
    assert_eq!(agents.len(), 2);
    agents[1].kill().unwrap();
    agents[1].wait().unwrap();
}

#[test]
fn an_agent_that_cannot_start_is_reported_with_its_log() {
    let world = World::new();
    let folder = folder(&world, "executor");
    let began = Instant::now();
    for (has_ended, is_first) in [(true, true), (true, false), (false, false)] {
        let mut tries = 0;
        // A program that starts and serves nothing.
        let refused = ensure_agent(&world.config, &folder, || {
            std::fs::write(folder.join("agent.log"), "Traceback\nConfigError: why it ended\n\n").unwrap();
            tries += 1;
            Ok(move || has_ended)
        });
        let refused = refused.unwrap_err();
        assert_eq!(refused.condition(), "AGENT_UNREACHABLE");
        // Whose port it is to have may be leaving; who comes right behind tries once.
        assert!(if is_first { tries > 1 } else { tries == 1 }, "{tries}");
        let what = if has_ended { "has ended" } else { "does not answer" };
        assert!(refused.to_string().contains(what), "{refused}");
        assert!(refused.to_string().contains("agent.log ends: ConfigError: why it ended"), "{refused}");
    }
    assert!(began.elapsed() < Duration::from_secs(80));
}

#[test]
fn an_agent_that_ends_at_once_is_started_again_until_one_serves() {
    let world = World::new();
    let folder = folder(&world, "executor");
    let (mut tries, mut agent) = (0, None);
    let socket = ensure_agent(&world.config, &folder, || {
        tries += 1;
        let has_ended = tries < 3;
        if !has_ended {
            agent = Some(spawn(&world.config, &folder, std::process::id()));
        }
        Ok(move || has_ended)
    })
    .unwrap();
    Client::connect(&world.config, &socket).unwrap();
    assert_eq!(tries, 3);
    let mut agent = agent.unwrap();
    agent.kill().unwrap();
    agent.wait().unwrap();
}

#[test]
fn an_agent_whose_place_another_has_taken_ends() {
    let world = World::new();
    let folder = folder(&world, "executor");
    let mut slow = spawn(&world.config, &folder, std::process::id());
    eventually("it is up", || Client::connect(&world.config, &folder.join("agent.sock")).is_ok());
    let slow_pid = slow.id().to_string();
    let signal = |signal: &str| {
        assert!(Command::new("kill").args([signal, &slow_pid]).status().unwrap().success());
    };
    let mut worker = Client::connect(&world.config, &folder.join("agent.sock")).unwrap();
    let opened = open(&mut worker, &task(0), 1, 1);
    append(&mut worker, opened.session, &text("a")).unwrap();
    // Too slow to answer, as it is paused: a worker starts another.
    signal("-STOP");
    let mut config = world.config.clone();
    config.io_timeout_ms = 300;
    let mut next = None;
    let socket = ensure_agent(&config, &folder, || {
        next = Some(spawn(&world.config, &folder, std::process::id()));
        Ok(|| false)
    });
    let mut worker = Client::connect(&world.config, &socket.unwrap()).unwrap();
    signal("-CONT");
    eventually("it has ended", || slow.try_wait().unwrap().is_some());
    // It has taken nothing with it: neither the socket, which is the other's, nor what was recorded.
    let opened = open(&mut worker, &task(0), 1, 2);
    assert_eq!(opened.prior, [text("a")]);
    drop(ensure_agent::<fn() -> bool>(&config, &folder, || panic!("there is one")).unwrap());
    let mut next = next.unwrap();
    next.kill().unwrap();
    next.wait().unwrap();
}
