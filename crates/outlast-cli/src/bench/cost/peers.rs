//! Runs of Redis Cluster, etcd and Hazelcast, in which a server is killed.

use super::course::{Course, Record};
use super::job::parse;
use super::writers::{self, Written};
use super::{Plan, WRITERS};
use crate::bench::peers::{EtcdCluster, Grpc, Hazelcast, Place, RedisCluster, Servers, slot_of};
use crate::members::machine_ns;
use anyhow::{Context, ensure};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Redis: how many of the two Redis replicas have to have a write. After the kill a single one is
/// left.
const REDIS_WAIT: usize = 1;
const HAZELCAST_MEMBERS: usize = 4;
const HAZELCAST_BACKUPS: usize = 2;
/// How long etcd may take to answer before a writer asks another member.
const ETCD_PATIENCE: Duration = Duration::from_secs(1);

/// Has writers write, each with a function of its own, and kills a server meanwhile. Returns when
/// it was killed, and the acknowledged writes.
fn write_and_kill<P: FnMut(&[u8], &[u8]) -> anyhow::Result<()> + Send>(
    plan: &Plan,
    servers: &mut Servers,
    victim: usize,
    puts: Vec<P>,
    is_affected: impl Fn(&str) -> bool,
) -> anyhow::Result<(u64, Vec<Written>)> {
    let keys: Vec<Vec<String>> =
        (0..puts.len()).map(|writer| writers::keys(writer, plan, &is_affected)).collect();
    let begin = Instant::now() + Duration::from_millis(20);
    std::thread::scope(|scope| {
        let writers: Vec<_> = puts
            .into_iter()
            .zip(keys)
            .enumerate()
            .map(|(writer, (put, keys))| {
                scope.spawn(move || writers::write(writer, begin, plan, keys, put))
            })
            .collect();
        std::thread::sleep(plan.before() + begin.saturating_duration_since(Instant::now()));
        let killed_ns = machine_ns();
        servers.kill(victim)?;
        let mut written = Vec::new();
        for writer in writers {
            written.extend(writer.join().map_err(|_| anyhow::anyhow!("a writer panicked"))?);
        }
        ensure!(!written.is_empty(), "no write was acknowledged");
        Ok((killed_ns, written))
    })
}

/// Counts the writes that cannot be read back.
fn count_lost(
    written: &[Written],
    mut has: impl FnMut(&[u8]) -> anyhow::Result<bool>,
) -> anyhow::Result<u64> {
    let mut lost = 0;
    for Written { key, .. } in written {
        lost += u64::from(!has(key.as_bytes()).context("reading a write back")?);
    }
    Ok(lost)
}

/// Calls a function until it succeeds, for some seconds.
fn insist<T>(mut function: impl FnMut() -> anyhow::Result<T>) -> anyhow::Result<T> {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        match function() {
            Err(error) if Instant::now() >= until => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
            found => return found,
        }
    }
}

fn record(killed_ns: u64, written: &[Written], lost: u64) -> Record {
    let writes = written.iter().map(|written| written.write).collect();
    Record { writes, killed_ns, complete_ns: None, lost }
}

/// Redis Cluster: server 0 is killed, a master. Its Redis replicas elect a new one.
pub(super) fn redis(plan: &Plan) -> anyhow::Result<Course> {
    let mut cluster = RedisCluster::start()?;
    let mut puts = Vec::new();
    for _ in 0..WRITERS {
        let mut caller = cluster.caller()?;
        puts.push(move |key: &[u8], value: &[u8]| {
            let count = caller.set(key, value, REDIS_WAIT)?;
            ensure!(count >= REDIS_WAIT, "no replica has it");
            Ok(())
        });
    }
    let slots = cluster.slots_of_victim();
    let is_affected = |key: &str| slots.contains(&slot_of(key.as_bytes()));
    let (killed_ns, written) = write_and_kill(plan, &mut cluster.servers, 0, puts, is_affected)?;
    let mut caller = cluster.caller()?;
    let lost = count_lost(&written, |key| insist(|| caller.has(key)))?;
    let version = Some(("Redis".to_string(), cluster.version.clone()));
    let remark = "Redis Cluster: 3 masters with 2 replicas each, WAIT 1 after each SET, \
                  cluster-node-timeout 2 s (its default is 15 s). A dead server is replaced by an \
                  operator, so copies stay missing.";
    let processes = cluster.servers.pids().len();
    let record = record(killed_ns, &written, lost);
    Ok(Course::new("Redis Cluster", processes, plan, &record, version, remark))
}

/// A writer's connection to any member of etcd.
struct EtcdCaller {
    addresses: Vec<SocketAddr>,
    connection: Option<Grpc>,
}

impl EtcdCaller {
    fn ask<T>(&mut self, ask: impl FnOnce(&mut Grpc) -> anyhow::Result<T>) -> anyhow::Result<T> {
        if self.connection.is_none() {
            let stream = TcpStream::connect_timeout(&self.addresses[0], Duration::from_millis(200));
            let connect = stream.map_err(anyhow::Error::from).and_then(|stream| {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(ETCD_PATIENCE))?;
                Grpc::new(stream)
            });
            match connect {
                Ok(connection) => self.connection = Some(connection),
                Err(error) => {
                    self.addresses.rotate_left(1);
                    return Err(error);
                }
            }
        }
        let answer = ask(self.connection.as_mut().context("it is connected")?);
        if answer.is_err() {
            self.connection = None;
            self.addresses.rotate_left(1);
        }
        answer
    }
}

/// etcd: the leader is killed, and the others elect a new one. All keys are affected.
pub(super) fn etcd(plan: &Plan) -> anyhow::Result<Course> {
    let mut cluster = EtcdCluster::start(&Place::Here)?;
    let caller = |number: usize| {
        let mut addresses = cluster.addresses.clone();
        let count = addresses.len();
        addresses.rotate_left(number % count);
        EtcdCaller { addresses, connection: None }
    };
    let mut puts = Vec::new();
    for writer in 0..WRITERS {
        let mut caller = caller(writer);
        puts.push(move |key: &[u8], value: &[u8]| caller.ask(|grpc| grpc.set(key, value)));
    }
    let mut reader = caller(cluster.leader + 1);
    let leader = cluster.leader;
    // All writers are for affected keys.
    let (killed_ns, mut written) =
        write_and_kill(plan, &mut cluster.servers, leader, puts, |key| {
            key.split('/')
                .nth(1)
                .and_then(|writer| writer.parse().ok())
                .is_some_and(writers::is_for_affected)
        })?;
    written.iter_mut().for_each(|written| written.write.is_affected = true);
    let lost = count_lost(&written, |key| {
        insist(|| reader.ask(|grpc| Ok(grpc.value_len(key)?.is_some())))
    })?;
    let version = Some(("etcd".to_string(), cluster.version.clone()));
    let remark = "etcd: 3 members, whose logs are in memory; the leader is killed. A dead member \
                  is replaced by an operator, so a copy stays missing.";
    let record = record(killed_ns, &written, lost);
    Ok(Course::new("etcd", cluster.servers.pids().len(), plan, &record, version, remark))
}

/// Hazelcast: a member is killed that does not write. The others make its copies again.
pub(super) fn hazelcast(plan: &Plan) -> anyhow::Result<Course> {
    let (mut hazelcast, mut servers) =
        Hazelcast::start(HAZELCAST_MEMBERS, HAZELCAST_BACKUPS, &Place::Here)?;
    hazelcast.begin_course(WRITERS, plan.length, plan.period, plan.size)?;
    std::thread::sleep(plan.before());
    let killed_ns = machine_ns();
    servers.kill(0)?;
    let mut lines = Vec::new();
    loop {
        let line = hazelcast.line(Duration::from_secs(120) + 2 * plan.length)?;
        if line == "done" {
            break;
        }
        lines.push(line);
    }
    let record = parse(lines.iter().map(String::as_str), killed_ns)?;
    let version = Some(("Hazelcast".to_string(), hazelcast.version.clone()));
    let remark = "Hazelcast: 2 synchronous backups in 4 members, written from inside a member. \
                  Affected are keys whose partition the killed member owned.";
    let processes = servers.pids().len();
    Ok(Course::new("Hazelcast", processes, plan, &record, version, remark))
}
