//! The rule of docs/protocol/forwarding.md as a machine with states and steps.
//!
//! A step is an access of a client to a replica, the execution of a request at its target, a
//! decision of a client, a death, or a node that learns of a death. A stopped process is a process
//! whose steps come late, so every stop is among the orders in which steps can come. An answer is
//! known to its client at once: answers keep their order, and what a client does with an answer is
//! a step of its own.
//!
//! The machine has one key, whose record exists at every replica, and no repair, removal, filling
//! replica or false death. Direct requests of a client are a single step. The blocks of each
//! replica are few, so that blocks are reused as soon as the rule permits it.

use super::monitor::{Call, Monitor};

/// The most replicas and clients of a scenario.
pub(crate) const REPLICAS: usize = 3;
pub(crate) const CLIENTS: usize = 3;
const BLOCKS: usize = 4;
const NODES: usize = REPLICAS + CLIENTS;
/// No block.
const NONE: u8 = u8::MAX;
/// How many versions a client may make: runs with more are cut off.
const VERSIONS_MAX: u8 = 8;

/// A set of members, clients or replicas, as bits. Members are the replicas, and then the clients.
type Set = u8;

/// Where a client is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Home {
    /// On a node of its own.
    Alone,
    /// The client is a thread of this replica.
    Replica(usize),
    /// A member of its own on the node of this replica, whose memory it maps.
    Mate(usize),
}

/// What becomes of the request of a writer that sets the stable bit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Marks {
    /// It lands before the call returns.
    Always,
    /// It lands before the call returns, or never.
    Maybe,
}

/// Members, calls and faults.
#[derive(Debug)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) replicas: usize,
    pub(crate) blocks: usize,
    pub(crate) clients: Vec<(Home, Vec<Call>)>,
    /// Sets of members that die at once.
    pub(crate) deaths: Vec<Set>,
    /// How many of these events may happen.
    pub(crate) deaths_max: u8,
    /// The clients whose waits may end at the time limit.
    pub(crate) impatient: Set,
    /// What becomes of the request that sets the stable bit.
    pub(crate) marks: Marks,
    /// Whether writers withdraw parts whose answers are late.
    pub(crate) withdraws: bool,
    /// Whether a primary may decline to forward.
    pub(crate) declines: bool,
    /// Whether members of a replica's node may come between its look at the view and the swap.
    pub(crate) splits: bool,
}

/// A rule that is left out or changed, to see that the checker notices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mutant {
    /// A put returns when the primary has answered.
    AckAtPrimary,
    /// The stable bit is set when the primary has answered.
    MarkAtPrimary,
    /// A reader returns a version without the stable bit.
    ReadUnstable,
    /// A near reader needs no near mark.
    NearUnmarked,
    /// The primary forwards although its own swap has failed.
    ForwardUnpublished,
    /// A replica compares no views, and takes a forwarded request of a dead writer.
    NoGuardForWriter,
    /// A replica compares no views, and takes a forwarded request from a dead primary.
    NoGuardForPrimary,
    /// Only the sender's death is looked at, as for other requests.
    NoOriginCheck,
    /// Only the origin's death is looked at.
    NoSenderCheck,
    /// Only the deaths of sender and origin are looked at, and no views are compared.
    NoViewCheck,
    /// A replica announces only the sender of the request that it executes.
    AnnounceSenderOnly,
    /// The writer takes a part for not executed as soon as it knows that the primary is dead.
    AssumeDropped,
    /// The straggler is cleared as soon as the primary has answered.
    ClearByPrimary,
    /// A timeout leaves no straggler behind.
    NoStraggler,
    /// After a timeout of the primary the blocks at the other replicas are used again, as they can
    /// be without forwarding.
    FreeBlocksAfterTimeout,
    /// The value goes to the other replicas directly, and only the swap is forwarded.
    FillApart,
    /// The writer installs the version itself while the forwarded request is on its way.
    InstallMeanwhile,
    /// The writer installs the version itself where the primary has declined, and the primary
    /// forwards all the same.
    ForwardDeclined,
    /// The replica answers that it has not executed a part, and does not refuse it later.
    WithdrawUnguarded,
    /// The writer begins anew after the death of the primary, and does not confirm.
    NoConfirm,
    /// A helper does not report the version to its writer.
    NotifyNobody,
    /// The primary does not compare the version counter.
    HeadAlone,
    /// The primary does not compare the head word, only the version counter of the cached block.
    CounterAlone,
}

/// The content of a block. Version 0 is no version.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, PartialOrd, Ord)]
struct Version {
    counter: u8,
    /// Which version of which client.
    id: u8,
    value: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
struct Head {
    number: u8,
    block: u8,
    stable: bool,
}

impl Head {
    fn names_as(self, other: Head) -> bool {
        (self.number, self.block) == (other.number, other.block)
    }
}

/// What becomes of a block when no head word names it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Use {
    Free,
    Named,
    /// Taken, or swapped out, by a client.
    Held(u8),
    /// Reused when the operations, and the stragglers, of these clients are over.
    Retired(Set, Set),
}

/// A request on its way.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
struct Request {
    kind: Kind,
    client: u8,
    /// The primary, also for forwarded requests.
    primary: u8,
    target: u8,
    /// The view that the operation belongs to.
    at: Set,
    /// The sender's view.
    view: Set,
    number: u8,
    /// By replica: the blocks that the head word names, and is to name.
    old: [u8; REPLICAS],
    new: [u8; REPLICAS],
    /// The replicas to which the primary is to forward.
    others: Set,
    /// The version counter of the predecessor, and the new version.
    before: u8,
    version: Version,
}

impl Request {
    fn to(self, kind: Kind, target: usize, view: Set) -> Request {
        Request { kind, target: target as u8, view, ..self }
    }

    fn expected(&self) -> Head {
        Head { number: self.number, block: self.old[self.target as usize], stable: false }
    }

    fn named(&self) -> Head {
        Head { number: self.number, block: self.new[self.target as usize], stable: false }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
enum Kind {
    ToPrimary,
    Forwarded,
    /// The value alone.
    Fill,
}

/// What a writer knows of a part of its request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Part {
    /// There is none: the replica is the writer, or is not in the list.
    None,
    Pending,
    /// The swap was made.
    Done,
    /// The replica was not as expected.
    Unexpected,
    /// Refused, or withdrawn: it was not executed and will not be.
    Never,
    /// The primary has executed its own part, and has not forwarded this one.
    Declined,
    /// The replica is dead.
    Dead,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Reconcile {
    Seal(u8),
    Install(u8),
    Notify,
    Mark,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Phase {
    Idle,
    /// *find* and *check*, or a read.
    Find,
    /// Loads the head word of this replica.
    Look(u8),
    /// Waits for the answers.
    Await,
    /// *install* at these replicas by the writer itself.
    Install(Set),
    Confirm,
    /// Whether *confirm* follows, the step, and what was seen at each replica.
    Reconcile(bool, Reconcile, [Head; REPLICAS], [Version; REPLICAS]),
    /// The call has returned `Timeout`, and its requests are stragglers.
    Late,
    Over,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Client {
    phase: Phase,
    next: u8,
    versions: u8,
    /// The view of its operation.
    at: Set,
    is_in_flight: bool,
    is_late: bool,
    is_notified: bool,
    has_cache: bool,
    expected: [Head; REPLICAS],
    predecessor: Version,
    draft: Version,
    blocks: [u8; REPLICAS],
    parts: [Part; REPLICAS],
    /// The view, configuration number and version of the near mark.
    near: Option<(Set, u8, Version)>,
}

impl Client {
    /// Whether its next step touches no memory that a step of another member could touch before.
    /// Such a step is taken at once: an answer that comes earlier permits fewer orders.
    fn can_decide(&self) -> bool {
        let is_answered = !self.parts.contains(&Part::Pending);
        match self.phase {
            Phase::Await | Phase::Late => is_answered,
            Phase::Reconcile(_, step, ..) => step == Reconcile::Notify,
            _ => false,
        }
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Replica {
    head: Head,
    blocks: [Version; BLOCKS],
    uses: [Use; BLOCKS],
    /// The request between its look at the view and its swap.
    serving: Option<Request>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct State {
    replicas: [Replica; REPLICAS],
    dead: Set,
    deaths: u8,
    /// By node: the dead that it knows of.
    views: [Set; NODES],
    clients: [Client; CLIENTS],
    requests: Vec<Request>,
    /// Whether a head word was replaced by a smaller head word.
    is_shrunk: bool,
    /// Whether a member has named or given back a block that it did not hold.
    is_misused: bool,
    monitor: Monitor,
}

/// What a step does, with a client and a replica.
pub(crate) type Label = (&'static str, usize, usize);

/// A step, the state after it, and what it violates.
pub(crate) type Step = (Label, State, Option<&'static str>);

/// What an access of a client to a replica comes to.
enum Access {
    Done,
    /// Refused: the view has changed.
    Again,
    /// The replica is dead, and the client does not know.
    Silent,
}

pub(crate) struct Model<'a> {
    pub(crate) scenario: &'a Scenario,
    pub(crate) mutant: Option<Mutant>,
    /// Whether states are judged by themselves, and not only by what calls return.
    pub(crate) judges_states: bool,
}

fn bits(set: Set) -> impl Iterator<Item = usize> {
    (0..8).filter(move |bit| set & 1 << bit != 0)
}

impl Model<'_> {
    pub(crate) fn first(&self) -> State {
        let version = Version { counter: 1, id: u8::MAX, value: 1 };
        let replica = |index: usize| {
            let mut blocks = [Version::default(); BLOCKS];
            // The blocks of the replicas differ in their numbers.
            let block = index % self.scenario.blocks;
            blocks[block] = version;
            let mut uses = [Use::Free; BLOCKS];
            uses[block] = Use::Named;
            let head = Head { number: 0, block: block as u8, stable: index == 0 };
            Replica { head, blocks, uses, serving: None }
        };
        let client = Client {
            phase: Phase::Idle,
            next: 0,
            versions: 0,
            at: 0,
            is_in_flight: false,
            is_late: false,
            is_notified: false,
            has_cache: false,
            expected: [Head::default(); REPLICAS],
            predecessor: Version::default(),
            draft: Version::default(),
            blocks: [NONE; REPLICAS],
            parts: [Part::None; REPLICAS],
            near: None,
        };
        State {
            replicas: std::array::from_fn(replica),
            dead: 0,
            deaths: 0,
            views: [0; NODES],
            clients: std::array::from_fn(|_| client.clone()),
            requests: Vec::new(),
            is_shrunk: false,
            is_misused: false,
            monitor: Monitor::new(1),
        }
    }

    pub(crate) fn is_cut(&self, state: &State) -> bool {
        state.clients.iter().any(|client| client.versions > VERSIONS_MAX)
    }

    fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    // ---- Members, views and configurations.

    fn home(&self, client: usize) -> Home {
        self.scenario.clients[client].0
    }

    fn member(&self, client: usize) -> Set {
        match self.home(client) {
            Home::Replica(replica) => 1 << replica,
            Home::Alone | Home::Mate(_) => 1 << (REPLICAS + client),
        }
    }

    fn node(&self, client: usize) -> usize {
        match self.home(client) {
            Home::Replica(replica) | Home::Mate(replica) => replica,
            Home::Alone => REPLICAS + client,
        }
    }

    fn view(&self, state: &State, client: usize) -> Set {
        state.views[self.node(client)]
    }

    fn dead_clients(&self, view: Set) -> Set {
        (0..self.scenario.clients.len())
            .filter(|&client| view & self.member(client) != 0)
            .fold(0, |set, client| set | 1 << client)
    }

    /// The replicas of the configuration of a view.
    fn list(&self, view: Set) -> Set {
        ((1 << self.scenario.replicas) - 1) & !view
    }

    /// The configuration number of a view.
    fn number(&self, view: Set) -> u8 {
        (view & ((1 << self.scenario.replicas) - 1)).count_ones() as u8
    }

    fn primary(&self, view: Set) -> usize {
        self.list(view).trailing_zeros() as usize
    }

    /// An access of a client to a replica, under the view of its operation.
    fn access(&self, state: &mut State, client: usize, replica: usize) -> Access {
        let (node, at) = (self.node(client), state.clients[client].at);
        if state.views[node] != at {
            return Access::Again;
        }
        if state.dead & 1 << replica != 0 {
            return Access::Silent;
        }
        state.views[replica] |= at;
        if state.views[replica] != at {
            state.views[node] |= state.views[replica];
            return Access::Again;
        }
        Access::Done
    }

    // ---- Operations and blocks.

    fn begin(&self, state: &mut State, client: usize) {
        let at = self.view(state, client);
        let client = &mut state.clients[client];
        (client.at, client.is_in_flight) = (at, true);
    }

    fn end(&self, state: &mut State, client: usize) {
        state.clients[client].is_in_flight = false;
        let (bit, is_late) = (1 << client, state.clients[client].is_late);
        for used in state.replicas.iter_mut().flat_map(|replica| &mut replica.uses) {
            if let Use::Retired(operations, stragglers) = used
                && *operations & bit != 0
            {
                *operations &= !bit;
                if is_late {
                    *stragglers |= bit;
                }
            }
        }
    }

    /// The operation ends, and the call begins anew.
    fn start_over(&self, state: &mut State, client: usize) {
        self.end(state, client);
        let now = &mut state.clients[client];
        now.phase = Phase::Find;
        now.has_cache = false;
        (now.blocks, now.parts) = ([NONE; REPLICAS], [Part::None; REPLICAS]);
        self.begin(state, client);
    }

    fn retire(state: &mut State, replica: usize, block: u8) {
        let set = |is_in: fn(&Client) -> bool| {
            let clients = state.clients.iter().enumerate().filter(|(_, client)| is_in(client));
            clients.fold(0, |set, (client, _)| set | 1 << client)
        };
        let used = Use::Retired(set(|client| client.is_in_flight), set(|client| client.is_late));
        state.replicas[replica].uses[block as usize] = used;
    }

    /// Whether a replica executes a request of a dead member, as far as members of its node see.
    fn is_serving_dead(&self, state: &State, replica: usize, view: Set) -> bool {
        state.replicas[replica].serving.is_some_and(|request| {
            let origin = self.member(request.client as usize);
            let sender = match request.kind {
                Kind::Forwarded => 1 << request.primary,
                Kind::ToPrimary | Kind::Fill => origin,
            };
            let announced =
                if self.is(Mutant::AnnounceSenderOnly) { sender } else { sender | origin };
            view & announced != 0
        })
    }

    /// Takes a block that may be reused.
    fn take(&self, state: &mut State, client: usize, replica: usize) -> Option<u8> {
        let view = self.view(state, client);
        let gone = self.dead_clients(view);
        let is_blocked = match self.node(client) == replica {
            true => self.is_serving_dead(state, replica, view),
            // The replica executes the request to reuse the block behind the other request.
            false => state.replicas[replica].serving.is_some(),
        };
        let uses = &mut state.replicas[replica].uses[..self.scenario.blocks];
        let block = uses.iter().position(|used| match *used {
            Use::Free => true,
            Use::Retired(operations, stragglers) => {
                !is_blocked && (operations | stragglers) & !gone == 0
            }
            Use::Named | Use::Held(_) => false,
        })?;
        uses[block] = Use::Held(client as u8);
        Some(block as u8)
    }

    /// A block that was taken and that no other member has seen.
    fn give_back(state: &mut State, client: usize, replica: usize, block: u8) {
        let Some(used) = state.replicas[replica].uses.get_mut(block as usize) else { return };
        if state.dead & 1 << replica != 0 {
            return;
        }
        state.is_misused |= *used != Use::Held(client as u8);
        *used = Use::Free;
    }

    /// Swaps a head word, and puts the version of a draft into its block.
    fn name(state: &mut State, client: u8, replica: usize, head: Head) {
        let at = &mut state.replicas[replica];
        let counter = |head: Head| (head.number, at.blocks[head.block as usize].counter);
        state.is_shrunk |= counter(head) <= counter(at.head);
        state.is_misused |= at.uses[head.block as usize] != Use::Held(client);
        at.uses[at.head.block as usize] = Use::Held(client);
        at.uses[head.block as usize] = Use::Named;
        at.head = head;
    }

    fn version(state: &State, replica: usize) -> Version {
        let at = &state.replicas[replica];
        at.blocks[at.head.block as usize]
    }

    // ---- What must hold in every state.

    pub(crate) fn violated(&self, state: &State) -> Option<&'static str> {
        if !self.judges_states {
            return None;
        }
        if state.is_shrunk {
            return Some("a head word was replaced by a smaller head word");
        }
        if state.is_misused {
            return Some("a member has used a block that it did not hold");
        }
        let living = bits(self.list(state.dead));
        let mut versions = Vec::new();
        for replica in living {
            let at = &state.replicas[replica];
            if at.uses[at.head.block as usize] != Use::Named {
                return Some("a head word names a block that is not in use");
            }
            if at.uses.iter().filter(|&&used| used == Use::Named).count() != 1 {
                return Some("a block is in use that no head word names");
            }
            let version = Self::version(state, replica);
            if version.counter == 0 {
                return Some("a head word names a block without a version");
            }
            versions.push((at.head.number, version));
        }
        let are_twins = |(a, b): (&(u8, Version), &(u8, Version))| {
            a.0 == b.0 && a.1.counter == b.1.counter && a.1.id != b.1.id
        };
        let pairs = versions.iter().flat_map(|a| versions.iter().map(move |b| (a, b)));
        if pairs.into_iter().any(are_twins) {
            return Some("two versions have equal counters under a configuration number");
        }
        None
    }

    // ---- Steps.

    pub(crate) fn steps(&self, state: &State) -> Vec<Step> {
        let mut out = Vec::new();
        let clients = (0..self.scenario.clients.len())
            .filter(|&client| state.dead & self.member(client) == 0);
        if let Some(client) = clients.clone().find(|&client| state.clients[client].can_decide()) {
            self.client_steps(state, client, &mut out);
            out.iter_mut().for_each(|(_, next, _)| self.tidy(next));
            return out;
        }
        clients.for_each(|client| self.client_steps(state, client, &mut out));
        for (index, request) in state.requests.iter().enumerate() {
            self.request_steps(state, index, *request, &mut out);
        }
        for replica in 0..self.scenario.replicas {
            self.replica_steps(state, replica, &mut out);
        }
        self.fault_steps(state, &mut out);
        out.iter_mut().for_each(|(_, next, _)| self.tidy(next));
        out
    }

    /// Drops what can make no difference any more.
    fn tidy(&self, state: &mut State) {
        let dead = state.dead;
        state.requests.retain(|request| dead & 1 << request.target == 0);
        state.requests.sort_unstable();
        for replica in bits(dead).filter(|&replica| replica < REPLICAS) {
            let at = &mut state.replicas[replica];
            at.serving = None;
            (at.blocks, at.uses) = ([Version::default(); BLOCKS], [Use::Free; BLOCKS]);
            (at.head, state.views[replica]) = (Head::default(), 0);
        }
        for client in 0..self.scenario.clients.len() {
            let is_dead = dead & self.member(client) != 0;
            let now = &mut state.clients[client];
            if is_dead {
                // Whether its operation was in flight still counts.
                let (is_in_flight, is_late) = (now.is_in_flight, now.is_late);
                *now = Client { is_in_flight, is_late, ..self.first().clients[client].clone() };
                now.phase = Phase::Over;
                if self.home(client) == Home::Alone {
                    state.views[REPLICAS + client] = 0;
                }
            } else if now.phase == Phase::Over {
                (now.at, now.versions, now.has_cache, now.near) = (0, 0, false, None);
                if self.home(client) == Home::Alone {
                    state.views[REPLICAS + client] = 0;
                }
            }
            if now.phase == Phase::Idle {
                now.at = 0;
            }
            if !now.has_cache && matches!(now.phase, Phase::Idle | Phase::Over | Phase::Find) {
                now.expected = [Head::default(); REPLICAS];
                now.predecessor = Version::default();
                now.draft = Version::default();
                now.is_notified = false;
            }
        }
        // A block without a name has no content that matters, unless a head word may come to name
        // it again.
        for at in &mut state.replicas {
            for block in 0..BLOCKS {
                if at.uses[block] == Use::Free {
                    at.blocks[block] = Version::default();
                }
            }
        }
    }

    /// Deaths, and nodes that learn of them: any node may learn of any death at any time.
    fn fault_steps(&self, state: &State, out: &mut Vec<Step>) {
        for node in 0..NODES {
            let is_used = match node {
                0..REPLICAS => node < self.scenario.replicas && state.dead & 1 << node == 0,
                _ => {
                    let client = node - REPLICAS;
                    client < self.scenario.clients.len()
                        && self.home(client) == Home::Alone
                        && state.dead & self.member(client) == 0
                        && state.clients[client].phase != Phase::Over
                }
            };
            for member in bits(state.dead & !state.views[node]).filter(|_| is_used) {
                let mut next = state.clone();
                next.views[node] |= 1 << member;
                out.push((("learns of a death", node, member), next, None));
            }
        }
        for &set in &self.scenario.deaths {
            if state.deaths < self.scenario.deaths_max && state.dead & set != set {
                let mut next = state.clone();
                next.dead |= set;
                next.deaths += 1;
                out.push((("death of members", set as usize, 0), next, None));
            }
        }
    }

    /// *reclaim*, and the second half of a request.
    fn replica_steps(&self, state: &State, replica: usize, out: &mut Vec<Step>) {
        if state.dead & 1 << replica != 0 {
            return;
        }
        if let Some(request) = state.replicas[replica].serving {
            let mut next = state.clone();
            next.replicas[replica].serving = None;
            self.execute(&mut next, request);
            out.push((("finishes a request", request.client as usize, replica), next, None));
        }
        let view = state.views[replica];
        let gone = self.dead_clients(view);
        if self.is_serving_dead(state, replica, view) {
            return;
        }
        for (block, used) in state.replicas[replica].uses.iter().enumerate() {
            if let Use::Held(client) = *used
                && gone & 1 << client != 0
            {
                let mut next = state.clone();
                Self::retire(&mut next, replica, block as u8);
                out.push((("reclaims a block", block, replica), next, None));
            }
        }
    }

    // ---- Requests at their targets.

    fn request_steps(&self, state: &State, index: usize, request: Request, out: &mut Vec<Step>) {
        let target = request.target as usize;
        if state.replicas[target].serving.is_some() {
            return;
        }
        let mut next = state.clone();
        next.requests.remove(index);
        let labels = (request.client as usize, target);
        let is_forwarded = request.kind == Kind::Forwarded;
        // The frame of a dead sender is dropped before the deaths that it carries are applied. The
        // origin is looked at afterwards.
        let (origin, sender) = (self.member(request.client as usize), 1 << request.primary);
        let sender = if is_forwarded { sender } else { origin };
        let takes_dead_sender =
            is_forwarded && (self.is(Mutant::NoGuardForPrimary) || self.is(Mutant::NoSenderCheck));
        let takes_dead_origin =
            is_forwarded && (self.is(Mutant::NoGuardForWriter) || self.is(Mutant::NoOriginCheck));
        if next.views[target] & sender != 0 && !takes_dead_sender {
            out.push((("drops a request of a dead sender", labels.0, labels.1), next, None));
            return;
        }
        next.views[target] |= request.view;
        if next.views[target] & origin != 0 && !takes_dead_origin {
            out.push((("drops a request of a dead origin", labels.0, labels.1), next, None));
            return;
        }
        let compares_views = !is_forwarded
            || !(self.is(Mutant::NoGuardForWriter)
                || self.is(Mutant::NoGuardForPrimary)
                || self.is(Mutant::NoViewCheck));
        if next.views[target] != request.at && compares_views {
            self.reply(&mut next, request, Part::Never);
            out.push((("refuses a request", labels.0, labels.1), next, None));
            return;
        }
        if self.scenario.splits {
            next.replicas[target].serving = Some(request);
            out.push((("begins a request", labels.0, labels.1), next, None));
            return;
        }
        if request.kind == Kind::ToPrimary && self.scenario.declines {
            let mut other = next.clone();
            self.execute_at_primary(&mut other, request, false);
            out.push((("executes a request, and declines", labels.0, labels.1), other, None));
        }
        self.execute(&mut next, request);
        out.push((("executes a request", labels.0, labels.1), next, None));
    }

    fn execute(&self, state: &mut State, request: Request) {
        let (target, block) = (request.target as usize, request.new[request.target as usize]);
        match request.kind {
            Kind::ToPrimary => self.execute_at_primary(state, request, true),
            Kind::Forwarded => {
                if !self.is(Mutant::FillApart) {
                    state.replicas[target].blocks[block as usize] = request.version;
                }
                let is_done = state.replicas[target].head.names_as(request.expected());
                if is_done {
                    Self::name(state, request.client, target, request.named());
                }
                self.reply(state, request, if is_done { Part::Done } else { Part::Unexpected });
            }
            Kind::Fill => state.replicas[target].blocks[block as usize] = request.version,
        }
    }

    fn execute_at_primary(&self, state: &mut State, request: Request, forwards: bool) {
        let primary = request.target as usize;
        let at = &mut state.replicas[primary];
        let is_head = at.head.names_as(request.expected()) || self.is(Mutant::CounterAlone);
        let old = request.old[primary] as usize;
        let is_counter = at.blocks[old].counter == request.before || self.is(Mutant::HeadAlone);
        let is_done = is_head && is_counter;
        if is_done {
            at.blocks[request.new[primary] as usize] = request.version;
            Self::name(state, request.client, primary, request.named());
        }
        let is_sent = (forwards || self.is(Mutant::ForwardDeclined))
            && (is_done || self.is(Mutant::ForwardUnpublished));
        let view = state.views[primary];
        for target in bits(request.others) {
            let part = request.to(Kind::Forwarded, target, view);
            if is_sent {
                state.requests.push(part);
            }
            match (is_done, forwards) {
                (true, true) => {}
                (true, false) => self.reply(state, part, Part::Declined),
                (false, _) => self.reply(state, part, Part::Never),
            }
        }
        self.reply(state, request, if is_done { Part::Done } else { Part::Unexpected });
    }

    fn reply(&self, state: &mut State, request: Request, answer: Part) {
        let is_dead = state.dead & self.member(request.client as usize) != 0;
        let writer = &mut state.clients[request.client as usize];
        let is_awaited = writer.draft.id == request.version.id
            && matches!(writer.phase, Phase::Await | Phase::Late)
            && !is_dead;
        if !is_awaited || request.kind == Kind::Fill {
            return;
        }
        let parts = &mut writer.parts;
        if parts[request.target as usize] == Part::Pending {
            parts[request.target as usize] = answer;
        }
        if request.kind == Kind::ToPrimary && answer == Part::Never {
            // Nothing was forwarded.
            for part in parts.iter_mut().filter(|part| **part == Part::Pending) {
                *part = Part::Never;
            }
        }
    }

    // ---- Calls.

    fn client_steps(&self, state: &State, client: usize, out: &mut Vec<Step>) {
        let now = &state.clients[client];
        let mut next = state.clone();
        let mut violated = None;
        let (at, view) = (now.at, self.view(state, client));
        if self.list(view) == 0 {
            return;
        }
        let (number, primary) = (self.number(at), self.primary(at));
        let calls = &self.scenario.clients[client].1;
        let label = match now.phase {
            Phase::Over => return,
            Phase::Idle => {
                let Some(&call) = calls.get(now.next as usize) else { return };
                self.begin(&mut next, client);
                next.monitor.begin(client, call, self.dead_clients(view));
                violated = self.start(&mut next, client, call);
                if next.clients[client].phase == Phase::Find {
                    self.client_steps(&next, client, out);
                    return;
                }
                ("begins a call", client, now.next as usize)
            }
            Phase::Find => {
                match self.access(&mut next, client, primary) {
                    Access::Done => violated = self.check(&mut next, client),
                    Access::Again => self.start_over(&mut next, client),
                    Access::Silent => return,
                }
                ("finds the record", client, primary)
            }
            Phase::Look(replica) => {
                let replica = replica as usize;
                match self.access(&mut next, client, replica) {
                    Access::Done if next.replicas[replica].head.number == number => {
                        let head = next.replicas[replica].head;
                        next.clients[client].expected[replica] = Head { stable: false, ..head };
                        self.look_beyond(&mut next, client, replica);
                    }
                    Access::Done | Access::Again => self.start_over(&mut next, client),
                    Access::Silent => return,
                }
                ("looks at a replica", client, replica)
            }
            Phase::Await => {
                self.await_steps(state, client, out);
                return;
            }
            Phase::Late => {
                self.late_steps(state, client, out);
                return;
            }
            Phase::Install(todo) => {
                let replica = todo.trailing_zeros() as usize;
                match self.access(&mut next, client, replica) {
                    Access::Done => {
                        self.install(&mut next, client, replica);
                        next.clients[client].phase = Phase::Install(todo & !(1 << replica));
                        if todo & !(1 << replica) == 0 {
                            self.acknowledge(next, client, "installs, and returns", out);
                            return;
                        }
                    }
                    Access::Again => {
                        for replica in bits(todo) {
                            let block = next.clients[client].blocks[replica];
                            Self::give_back(&mut next, client, replica, block);
                        }
                        self.confirm(&mut next, client);
                    }
                    Access::Silent => return,
                }
                ("installs", client, replica)
            }
            Phase::Confirm => {
                match self.access(&mut next, client, primary) {
                    Access::Done => {
                        let head = next.replicas[primary].head;
                        if head.number < number || !head.stable {
                            next.clients[client].phase = self.reconciling(true, at);
                        } else if Self::version(&next, primary).id == now.draft.id
                            || now.is_notified
                        {
                            next.clients[client].blocks = [NONE; REPLICAS];
                            violated = self.answer(&mut next, client);
                        } else {
                            self.start_over(&mut next, client);
                        }
                    }
                    Access::Again => self.confirm(&mut next, client),
                    Access::Silent => return,
                }
                ("confirms", client, primary)
            }
            Phase::Reconcile(confirms, step, seen, versions) => {
                let what = (confirms, step, seen, versions);
                match self.reconcile(&mut next, client, what) {
                    Some(label) => (label, client, primary),
                    None => return,
                }
            }
        };
        out.push((label, next, violated));
    }

    /// The call returns.
    fn answer(&self, state: &mut State, client: usize) -> Option<&'static str> {
        let value = match state.monitor.pending(client) {
            Some(Call::Put(_)) => 0,
            _ => state.clients[client].draft.value,
        };
        self.answer_with(state, client, value)
    }

    fn answer_with(&self, state: &mut State, client: usize, value: u8) -> Option<&'static str> {
        let fits = state.monitor.answer(client, value);
        self.end(state, client);
        let now = &mut state.clients[client];
        now.next += 1;
        let is_over = now.next as usize == self.scenario.clients[client].1.len();
        now.phase = if is_over { Phase::Over } else { Phase::Idle };
        now.parts = [Part::None; REPLICAS];
        now.blocks = [NONE; REPLICAS];
        now.is_notified = false;
        if fits { None } else { Some("the results of the calls fit no order") }
    }

    /// The first step of a call.
    fn start(&self, state: &mut State, client: usize, call: Call) -> Option<&'static str> {
        let now = &state.clients[client];
        let number = self.number(now.at);
        if let (Call::Near, Home::Replica(replica)) = (call, self.home(client)) {
            let version = Self::version(state, replica);
            let mark = (now.at, state.replicas[replica].head.number, version);
            if now.near == Some(mark) || self.is(Mutant::NearUnmarked) {
                return self.answer_with(state, client, version.value);
            }
        }
        let is_read = matches!(call, Call::Read | Call::Near);
        let is_cached = now.has_cache && now.expected[self.primary(now.at)].number == number;
        state.clients[client].phase = Phase::Find;
        if is_cached && !is_read {
            self.send(state, client);
        }
        None
    }

    /// *check* at the primary; the end of a read.
    fn check(&self, state: &mut State, client: usize) -> Option<&'static str> {
        let at = state.clients[client].at;
        let primary = self.primary(at);
        let (head, version) = (state.replicas[primary].head, Self::version(state, primary));
        let is_read = matches!(state.monitor.pending(client), Some(Call::Read | Call::Near));
        let is_current = head.number == self.number(at);
        if is_read && is_current && (head.stable || self.is(Mutant::ReadUnstable)) {
            self.learn_near(state, client, version);
            return self.answer_with(state, client, version.value);
        }
        let now = &mut state.clients[client];
        if is_current && head.stable {
            (now.predecessor, now.expected[primary]) = (version, Head { stable: false, ..head });
            self.look_beyond(state, client, primary);
        } else {
            now.phase = self.reconciling(false, at);
        }
        None
    }

    /// Goes on to the next replica, or sends.
    fn look_beyond(&self, state: &mut State, client: usize, replica: usize) {
        let at = state.clients[client].at;
        match bits(self.list(at)).find(|&other| other > replica) {
            Some(other) => state.clients[client].phase = Phase::Look(other as u8),
            None => self.send(state, client),
        }
    }

    /// `near.learn`.
    fn learn_near(&self, state: &mut State, client: usize, version: Version) {
        if let Home::Replica(replica) = self.home(client) {
            let (at, number) = (state.clients[client].at, state.replicas[replica].head.number);
            let is_there = Self::version(state, replica) == version && number == self.number(at);
            state.clients[client].near = is_there.then_some((at, number, version));
        }
    }

    /// *send*: takes the blocks, and sends the request to the primary.
    fn send(&self, state: &mut State, client: usize) {
        let at = state.clients[client].at;
        let primary = self.primary(at);
        let mut blocks = [NONE; REPLICAS];
        for replica in bits(self.list(at)) {
            match self.take(state, client, replica) {
                Some(block) => blocks[replica] = block,
                None => {
                    for (replica, block) in blocks.into_iter().enumerate() {
                        Self::give_back(state, client, replica, block);
                    }
                    self.start_over(state, client);
                    return;
                }
            }
        }
        let call = state.monitor.pending(client);
        let own = match self.home(client) {
            Home::Replica(replica) => 1 << replica,
            Home::Alone | Home::Mate(_) => 0,
        };
        let others = self.list(at) & !(1 << primary) & !own;
        let now = &mut state.clients[client];
        now.versions += 1;
        now.draft = Version {
            counter: now.predecessor.counter + 1,
            id: (client as u8) << 4 | now.versions,
            value: match call {
                Some(Call::Put(value)) => value,
                _ => now.predecessor.value + 1,
            },
        };
        (now.phase, now.blocks, now.is_notified) = (Phase::Await, blocks, false);
        for replica in bits(others | 1 << primary) {
            now.parts[replica] = Part::Pending;
        }
        let request = Request {
            kind: Kind::ToPrimary,
            client: client as u8,
            primary: primary as u8,
            target: primary as u8,
            at,
            view: at,
            number: self.number(at),
            old: now.expected.map(|head| head.block),
            new: blocks,
            others,
            before: now.predecessor.counter,
            version: now.draft,
        };
        state.requests.push(request);
        if self.is(Mutant::FillApart) {
            let fills = bits(others).map(|target| request.to(Kind::Fill, target, at));
            state.requests.extend(fills);
        }
    }

    /// *withdraw*: what a writer learns of its parts without their answers.
    fn withdraw_steps(&self, state: &State, client: usize, out: &mut Vec<Step>) {
        let (now, view) = (&state.clients[client], self.view(state, client));
        let primary = self.primary(now.at);
        for replica in (0..REPLICAS).filter(|&replica| now.parts[replica] == Part::Pending) {
            let mut next = state.clone();
            let label = if view & 1 << replica != 0 {
                next.clients[client].parts[replica] = Part::Dead;
                "learns that a replica is dead"
            } else if view & 1 << primary != 0 {
                if !self.is(Mutant::AssumeDropped) {
                    // The question waits until the replica has executed what it has begun.
                    let is_busy = state.replicas[replica].serving.is_some();
                    if state.dead & 1 << replica != 0 || is_busy {
                        continue;
                    }
                    next.views[replica] |= view;
                }
                next.clients[client].parts[replica] = Part::Never;
                "withdraws a part from a dead primary"
            } else if self.scenario.withdraws && now.parts[primary] == Part::Done {
                let is_busy = state.replicas[replica].serving.is_some();
                if state.dead & 1 << replica != 0 || is_busy {
                    continue;
                }
                next.views[replica] |= view;
                if !self.is(Mutant::WithdrawUnguarded) {
                    // The replica refuses the part when it arrives.
                    next.requests.retain(|request| {
                        request.version.id != now.draft.id || request.target as usize != replica
                    });
                }
                next.clients[client].parts[replica] = Part::Declined;
                "withdraws a part"
            } else {
                continue;
            };
            out.push(((label, client, replica), next, None));
        }
    }

    fn await_steps(&self, state: &State, client: usize, out: &mut Vec<Step>) {
        let now = &state.clients[client];
        let (at, primary) = (now.at, self.primary(now.at));
        let is_published = now.parts[primary] == Part::Done;
        let pending = (0..REPLICAS)
            .filter(|&replica| now.parts[replica] == Part::Pending)
            .fold(0, |set, replica| set | 1 << replica);
        self.withdraw_steps(state, client, out);
        if is_published && self.is(Mutant::MarkAtPrimary) {
            let mut next = state.clone();
            self.mark_stable(&mut next, client);
            out.push((("sets the stable bit early", client, primary), next, None));
        }
        if is_published && pending != 0 && self.is(Mutant::InstallMeanwhile) {
            let mut next = state.clone();
            next.clients[client].phase = Phase::Install(pending);
            out.push((("installs meanwhile", client, primary), next, None));
        }
        if is_published && self.is(Mutant::AckAtPrimary) {
            self.acknowledge(state.clone(), client, "returns early", out);
        }
        if pending != 0 && self.scenario.impatient & 1 << client != 0 {
            let mut next = state.clone();
            let now = &mut next.clients[client];
            (now.phase, now.is_late) = (Phase::Late, !self.is(Mutant::NoStraggler));
            if self.is(Mutant::FreeBlocksAfterTimeout) {
                for replica in bits(pending & !(1 << primary)) {
                    let block = next.clients[client].blocks[replica];
                    Self::give_back(&mut next, client, replica, block);
                }
            }
            self.end(&mut next, client);
            out.push((("returns Timeout", client, primary), next, None));
        }
        if pending != 0 {
            return;
        }
        let mut next = state.clone();
        let mut install = 0;
        let mut is_open = !is_published;
        for replica in bits(self.list(at) & !(1 << primary)) {
            match now.parts[replica] {
                Part::Done | Part::Pending => {}
                Part::None | Part::Unexpected | Part::Declined => install |= 1 << replica,
                Part::Never | Part::Dead => is_open = true,
            }
        }
        if is_published && !is_open {
            self.release(&mut next, client, !install);
            if install == 0 {
                self.acknowledge(next, client, "returns", out);
                return;
            }
            next.clients[client].phase = Phase::Install(install);
        } else {
            self.release(&mut next, client, Set::MAX);
            let is_failed = now.parts[primary] == Part::Unexpected;
            if is_failed || self.is(Mutant::NoConfirm) {
                self.start_over(&mut next, client);
            } else {
                self.confirm(&mut next, client);
            }
        }
        out.push((("has all answers", client, primary), next, None));
    }

    fn late_steps(&self, state: &State, client: usize, out: &mut Vec<Step>) {
        let now = &state.clients[client];
        let primary = self.primary(now.at);
        let is_pending = |replica: usize| now.parts[replica] == Part::Pending;
        self.withdraw_steps(state, client, out);
        let is_landed = match self.is(Mutant::ClearByPrimary) {
            true => !is_pending(primary),
            false => !(0..REPLICAS).any(is_pending),
        };
        if !is_landed {
            return;
        }
        let mut next = state.clone();
        self.release(&mut next, client, Set::MAX);
        let now = &mut next.clients[client];
        (now.is_late, now.phase) = (false, Phase::Over);
        for used in next.replicas.iter_mut().flat_map(|replica| &mut replica.uses) {
            if let Use::Retired(_, stragglers) = used {
                *stragglers &= !(1 << client);
            }
        }
        out.push((("clears its straggler", client, primary), next, None));
    }

    /// Retires what its parts have swapped out, and gives the blocks of the other parts back, at
    /// these replicas.
    fn release(&self, state: &mut State, client: usize, replicas: Set) {
        let now = state.clients[client].clone();
        for replica in bits(self.list(now.at) & !state.dead & replicas) {
            let old = now.expected[replica].block;
            if now.parts[replica] == Part::Done {
                Self::retire(state, replica, old);
            } else {
                Self::give_back(state, client, replica, now.blocks[replica]);
                state.clients[client].blocks[replica] = NONE;
            }
        }
    }

    /// Enters *confirm* under the current view.
    fn confirm(&self, state: &mut State, client: usize) {
        let view = self.view(state, client);
        let now = &mut state.clients[client];
        (now.phase, now.at) = (Phase::Confirm, view);
        (now.parts, now.blocks) = ([Part::None; REPLICAS], [NONE; REPLICAS]);
    }

    /// *install* at a replica, by the writer itself.
    fn install(&self, state: &mut State, client: usize, replica: usize) {
        let now = &state.clients[client];
        let (draft, block, number) = (now.draft, now.blocks[replica], self.number(now.at));
        if Self::version(state, replica).counter >= draft.counter {
            Self::give_back(state, client, replica, block);
            state.clients[client].blocks[replica] = NONE;
            return;
        }
        let old = state.replicas[replica].head.block;
        state.replicas[replica].blocks[block as usize] = draft;
        Self::name(state, client as u8, replica, Head { number, block, stable: false });
        Self::retire(state, replica, old);
    }

    /// The put has happened, and returns. The request that sets the stable bit lands or is lost.
    fn acknowledge(
        &self,
        mut state: State,
        client: usize,
        what: &'static str,
        out: &mut Vec<Step>,
    ) {
        let now = &mut state.clients[client];
        let (at, primary) = (now.at, self.primary(now.at));
        let number = self.number(at);
        now.has_cache = bits(self.list(at)).all(|replica| now.blocks[replica] != NONE);
        now.predecessor = now.draft;
        now.expected = now.blocks.map(|block| Head { number, block, stable: false });
        let draft = now.draft;
        if self.view(&state, client) == at {
            self.learn_near(&mut state, client, draft);
        }
        let marks = match self.scenario.marks {
            Marks::Always => &[true][..],
            Marks::Maybe => &[true, false],
        };
        for &is_marked in marks {
            let mut state = state.clone();
            if is_marked {
                self.mark_stable(&mut state, client);
            }
            let violated = self.answer(&mut state, client);
            let label = if is_marked { what } else { "returns, and sets no stable bit" };
            out.push(((label, client, primary), state, violated));
        }
    }

    fn mark_stable(&self, state: &mut State, client: usize) {
        let now = &state.clients[client];
        let (at, primary) = (now.at, self.primary(now.at));
        let named = Head { number: self.number(at), block: now.blocks[primary], stable: false };
        if state.dead & 1 << primary == 0
            && state.views[primary] == at
            && state.replicas[primary].head == named
        {
            state.replicas[primary].head.stable = true;
        }
    }

    // ---- Reconciling.

    fn reconciling(&self, confirms: bool, at: Set) -> Phase {
        let first = self.primary(at) as u8;
        let (seen, versions) = ([Head::default(); REPLICAS], [Version::default(); REPLICAS]);
        Phase::Reconcile(confirms, Reconcile::Seal(first), seen, versions)
    }

    /// A step of a pass; `None` if there is none now.
    fn reconcile(
        &self,
        state: &mut State,
        client: usize,
        (confirms, step, mut seen, mut versions): (
            bool,
            Reconcile,
            [Head; REPLICAS],
            [Version; REPLICAS],
        ),
    ) -> Option<&'static str> {
        let at = state.clients[client].at;
        let (number, primary) = (self.number(at), self.primary(at));
        let after = |replica: u8| bits(self.list(at)).find(|&other| other > replica as usize);
        let back = if confirms { Phase::Confirm } else { Phase::Find };
        let target = match step {
            Reconcile::Seal(replica) | Reconcile::Install(replica) => replica as usize,
            Reconcile::Notify | Reconcile::Mark => primary,
        };
        let mut newest = versions[primary];
        for version in bits(self.list(at)).map(|replica| versions[replica]) {
            if version.counter > newest.counter {
                newest = version;
            }
        }
        if step != Reconcile::Notify {
            match self.access(state, client, target) {
                Access::Done => {}
                Access::Again if confirms => {
                    self.confirm(state, client);
                    return Some("reconciles under an old view");
                }
                Access::Again => {
                    self.start_over(state, client);
                    return Some("reconciles under an old view");
                }
                Access::Silent => return None,
            }
        }
        let head = state.replicas[target].head;
        let (label, phase) = match step {
            Reconcile::Seal(replica) => {
                if target == primary && head.number == number && head.stable {
                    ("finds a reconciled record", back)
                } else {
                    if head.number < number {
                        state.replicas[target].head = Head { number, stable: false, ..head };
                    }
                    seen[target] = state.replicas[target].head;
                    versions[target] = Self::version(state, target);
                    let step = match after(replica) {
                        Some(replica) => Reconcile::Seal(replica as u8),
                        None => Reconcile::Install(primary as u8),
                    };
                    ("seals", Phase::Reconcile(confirms, step, seen, versions))
                }
            }
            Reconcile::Install(replica) => {
                let has_it = versions[target].counter == newest.counter;
                if !has_it && !head.names_as(seen[target]) {
                    ("finds another head word", back)
                } else {
                    if !has_it {
                        let Some(block) = self.take(state, client, target) else {
                            if confirms {
                                return None;
                            }
                            self.start_over(state, client);
                            return Some("has no block to reconcile with");
                        };
                        state.replicas[target].blocks[block as usize] = newest;
                        let new = Head { number, block, stable: false };
                        Self::name(state, client as u8, target, new);
                        Self::retire(state, target, head.block);
                        (seen[target], versions[target]) = (new, newest);
                    }
                    let step = match after(replica) {
                        Some(replica) => Reconcile::Install(replica as u8),
                        None => Reconcile::Notify,
                    };
                    ("reconciles", Phase::Reconcile(confirms, step, seen, versions))
                }
            }
            Reconcile::Notify => {
                let writer = (newest.id >> 4) as usize;
                if let Some(writer) = state.clients.get_mut(writer)
                    && !self.is(Mutant::NotifyNobody)
                {
                    writer.is_notified |= writer.draft.id == newest.id;
                }
                let step = Reconcile::Mark;
                ("notifies the writer", Phase::Reconcile(confirms, step, seen, versions))
            }
            Reconcile::Mark => {
                if head == seen[primary] {
                    state.replicas[primary].head.stable = true;
                }
                ("sets the stable bit", back)
            }
        };
        state.clients[client].phase = phase;
        Some(label)
    }
}
