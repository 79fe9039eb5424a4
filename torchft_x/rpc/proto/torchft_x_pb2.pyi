# mypy: ignore-errors
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class State(_message.Message):
    __slots__ = ("step", "committed_in")
    STEP_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_IN_FIELD_NUMBER: _ClassVar[int]
    step: int
    committed_in: int
    def __init__(self, step: _Optional[int] = ..., committed_in: _Optional[int] = ...) -> None: ...

class Prepared(_message.Message):
    __slots__ = ("quorum", "step", "digest")
    QUORUM_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    quorum: int
    step: int
    digest: int
    def __init__(self, quorum: _Optional[int] = ..., step: _Optional[int] = ..., digest: _Optional[int] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("replica_id", "address", "store_address", "state", "torn", "world_size", "shrink_only", "commit_failures", "data", "handles", "prepared", "library", "traits", "carried", "votes_late", "held", "weight")
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    STORE_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    TORN_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    SHRINK_ONLY_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FAILURES_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    PREPARED_FIELD_NUMBER: _ClassVar[int]
    LIBRARY_FIELD_NUMBER: _ClassVar[int]
    TRAITS_FIELD_NUMBER: _ClassVar[int]
    CARRIED_FIELD_NUMBER: _ClassVar[int]
    VOTES_LATE_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    replica_id: str
    address: str
    store_address: str
    state: State
    torn: bool
    world_size: int
    shrink_only: bool
    commit_failures: int
    data: str
    handles: _containers.RepeatedScalarFieldContainer[str]
    prepared: Prepared
    library: str
    traits: Traits
    carried: _containers.RepeatedScalarFieldContainer[int]
    votes_late: bool
    held: _containers.RepeatedScalarFieldContainer[int]
    weight: int
    def __init__(self, replica_id: _Optional[str] = ..., address: _Optional[str] = ..., store_address: _Optional[str] = ..., state: _Optional[_Union[State, _Mapping]] = ..., torn: bool = ..., world_size: _Optional[int] = ..., shrink_only: bool = ..., commit_failures: _Optional[int] = ..., data: _Optional[str] = ..., handles: _Optional[_Iterable[str]] = ..., prepared: _Optional[_Union[Prepared, _Mapping]] = ..., library: _Optional[str] = ..., traits: _Optional[_Union[Traits, _Mapping]] = ..., carried: _Optional[_Iterable[int]] = ..., votes_late: bool = ..., held: _Optional[_Iterable[int]] = ..., weight: _Optional[int] = ...) -> None: ...

class Trait(_message.Message):
    __slots__ = ("name", "digest", "words", "parts", "ranks")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    WORDS_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    name: str
    digest: str
    words: str
    parts: _containers.RepeatedScalarFieldContainer[str]
    ranks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., digest: _Optional[str] = ..., words: _Optional[str] = ..., parts: _Optional[_Iterable[str]] = ..., ranks: _Optional[_Iterable[int]] = ...) -> None: ...

class Traits(_message.Message):
    __slots__ = ("traits",)
    TRAITS_FIELD_NUMBER: _ClassVar[int]
    traits: _containers.RepeatedCompositeFieldContainer[Trait]
    def __init__(self, traits: _Optional[_Iterable[_Union[Trait, _Mapping]]] = ...) -> None: ...

class Quorum(_message.Message):
    __slots__ = ("id", "config_id", "number", "members", "created", "granted_through", "lease_s")
    ID_FIELD_NUMBER: _ClassVar[int]
    CONFIG_ID_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    GRANTED_THROUGH_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    id: int
    config_id: int
    number: int
    members: _containers.RepeatedCompositeFieldContainer[Member]
    created: float
    granted_through: int
    lease_s: float
    def __init__(self, id: _Optional[int] = ..., config_id: _Optional[int] = ..., number: _Optional[int] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., created: _Optional[float] = ..., granted_through: _Optional[int] = ..., lease_s: _Optional[float] = ...) -> None: ...

class AttemptId(_message.Message):
    __slots__ = ("number", "started", "token")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    number: int
    started: float
    token: str
    def __init__(self, number: _Optional[int] = ..., started: _Optional[float] = ..., token: _Optional[str] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("replica_id", "attempt_id", "address", "state", "quorum", "granted_through", "lease_left_s", "boot_id", "library", "wire", "runs_on")
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    QUORUM_FIELD_NUMBER: _ClassVar[int]
    GRANTED_THROUGH_FIELD_NUMBER: _ClassVar[int]
    LEASE_LEFT_S_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    LIBRARY_FIELD_NUMBER: _ClassVar[int]
    WIRE_FIELD_NUMBER: _ClassVar[int]
    RUNS_ON_FIELD_NUMBER: _ClassVar[int]
    replica_id: str
    attempt_id: AttemptId
    address: str
    state: State
    quorum: Quorum
    granted_through: int
    lease_left_s: float
    boot_id: str
    library: str
    wire: int
    runs_on: bool
    def __init__(self, replica_id: _Optional[str] = ..., attempt_id: _Optional[_Union[AttemptId, _Mapping]] = ..., address: _Optional[str] = ..., state: _Optional[_Union[State, _Mapping]] = ..., quorum: _Optional[_Union[Quorum, _Mapping]] = ..., granted_through: _Optional[int] = ..., lease_left_s: _Optional[float] = ..., boot_id: _Optional[str] = ..., library: _Optional[str] = ..., wire: _Optional[int] = ..., runs_on: bool = ...) -> None: ...

class Join(_message.Message):
    __slots__ = ("member", "reason", "suspects", "number", "step_seconds", "patience_s", "unreached")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SUSPECTS_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    STEP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PATIENCE_S_FIELD_NUMBER: _ClassVar[int]
    UNREACHED_FIELD_NUMBER: _ClassVar[int]
    member: Member
    reason: str
    suspects: _containers.RepeatedScalarFieldContainer[str]
    number: int
    step_seconds: float
    patience_s: float
    unreached: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, member: _Optional[_Union[Member, _Mapping]] = ..., reason: _Optional[str] = ..., suspects: _Optional[_Iterable[str]] = ..., number: _Optional[int] = ..., step_seconds: _Optional[float] = ..., patience_s: _Optional[float] = ..., unreached: _Optional[_Iterable[str]] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("quorum_id", "step", "number", "step_seconds")
    QUORUM_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    STEP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    quorum_id: int
    step: int
    number: int
    step_seconds: float
    def __init__(self, quorum_id: _Optional[int] = ..., step: _Optional[int] = ..., number: _Optional[int] = ..., step_seconds: _Optional[float] = ...) -> None: ...

class Leave(_message.Message):
    __slots__ = ("state", "early", "lingers")
    STATE_FIELD_NUMBER: _ClassVar[int]
    EARLY_FIELD_NUMBER: _ClassVar[int]
    LINGERS_FIELD_NUMBER: _ClassVar[int]
    state: State
    early: bool
    lingers: str
    def __init__(self, state: _Optional[_Union[State, _Mapping]] = ..., early: bool = ..., lingers: _Optional[str] = ...) -> None: ...

class Ping(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Pause(_message.Message):
    __slots__ = ("seconds", "reason")
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    seconds: float
    reason: str
    def __init__(self, seconds: _Optional[float] = ..., reason: _Optional[str] = ...) -> None: ...

class Suspects(_message.Message):
    __slots__ = ("replica_ids",)
    REPLICA_IDS_FIELD_NUMBER: _ClassVar[int]
    replica_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, replica_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class Facts(_message.Message):
    __slots__ = ("commits", "drops", "steps", "reductions", "heals", "moments", "copy", "own_part_s")
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    DROPS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    REDUCTIONS_FIELD_NUMBER: _ClassVar[int]
    HEALS_FIELD_NUMBER: _ClassVar[int]
    MOMENTS_FIELD_NUMBER: _ClassVar[int]
    COPY_FIELD_NUMBER: _ClassVar[int]
    OWN_PART_S_FIELD_NUMBER: _ClassVar[int]
    commits: int
    drops: int
    steps: Counted
    reductions: Counted
    heals: Counted
    moments: _containers.RepeatedCompositeFieldContainer[Moment]
    copy: Copy
    own_part_s: float
    def __init__(self, commits: _Optional[int] = ..., drops: _Optional[int] = ..., steps: _Optional[_Union[Counted, _Mapping]] = ..., reductions: _Optional[_Union[Counted, _Mapping]] = ..., heals: _Optional[_Union[Counted, _Mapping]] = ..., moments: _Optional[_Iterable[_Union[Moment, _Mapping]]] = ..., copy: _Optional[_Union[Copy, _Mapping]] = ..., own_part_s: _Optional[float] = ...) -> None: ...

class Counted(_message.Message):
    __slots__ = ("counts", "sum")
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    SUM_FIELD_NUMBER: _ClassVar[int]
    counts: _containers.RepeatedScalarFieldContainer[int]
    sum: float
    def __init__(self, counts: _Optional[_Iterable[int]] = ..., sum: _Optional[float] = ...) -> None: ...

class Moment(_message.Message):
    __slots__ = ("what", "quorum", "participants", "ago_s", "took_s")
    WHAT_FIELD_NUMBER: _ClassVar[int]
    QUORUM_FIELD_NUMBER: _ClassVar[int]
    PARTICIPANTS_FIELD_NUMBER: _ClassVar[int]
    AGO_S_FIELD_NUMBER: _ClassVar[int]
    TOOK_S_FIELD_NUMBER: _ClassVar[int]
    what: str
    quorum: int
    participants: int
    ago_s: float
    took_s: float
    def __init__(self, what: _Optional[str] = ..., quorum: _Optional[int] = ..., participants: _Optional[int] = ..., ago_s: _Optional[float] = ..., took_s: _Optional[float] = ...) -> None: ...

class Copy(_message.Message):
    __slots__ = ("source", "done", "total", "took_s")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    TOOK_S_FIELD_NUMBER: _ClassVar[int]
    source: str
    done: int
    total: int
    took_s: float
    def __init__(self, source: _Optional[str] = ..., done: _Optional[int] = ..., total: _Optional[int] = ..., took_s: _Optional[float] = ...) -> None: ...

class Up(_message.Message):
    __slots__ = ("facts", "hello", "join", "leave", "ping", "progress", "pause", "suspects")
    FACTS_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    JOIN_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    PAUSE_FIELD_NUMBER: _ClassVar[int]
    SUSPECTS_FIELD_NUMBER: _ClassVar[int]
    facts: Facts
    hello: Hello
    join: Join
    leave: Leave
    ping: Ping
    progress: Progress
    pause: Pause
    suspects: Suspects
    def __init__(self, facts: _Optional[_Union[Facts, _Mapping]] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., join: _Optional[_Union[Join, _Mapping]] = ..., leave: _Optional[_Union[Leave, _Mapping]] = ..., ping: _Optional[_Union[Ping, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., pause: _Optional[_Union[Pause, _Mapping]] = ..., suspects: _Optional[_Union[Suspects, _Mapping]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("heartbeat_timeout_s", "ping_s", "others_train")
    HEARTBEAT_TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    PING_S_FIELD_NUMBER: _ClassVar[int]
    OTHERS_TRAIN_FIELD_NUMBER: _ClassVar[int]
    heartbeat_timeout_s: float
    ping_s: float
    others_train: bool
    def __init__(self, heartbeat_timeout_s: _Optional[float] = ..., ping_s: _Optional[float] = ..., others_train: bool = ...) -> None: ...

class Grant(_message.Message):
    __slots__ = ("quorum_id", "granted_through", "lease_s", "number")
    QUORUM_ID_FIELD_NUMBER: _ClassVar[int]
    GRANTED_THROUGH_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    quorum_id: int
    granted_through: int
    lease_s: float
    number: int
    def __init__(self, quorum_id: _Optional[int] = ..., granted_through: _Optional[int] = ..., lease_s: _Optional[float] = ..., number: _Optional[int] = ...) -> None: ...

class Revoked(_message.Message):
    __slots__ = ("quorum_id", "lost", "reason", "left")
    QUORUM_ID_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    quorum_id: int
    lost: _containers.RepeatedScalarFieldContainer[str]
    reason: str
    left: bool
    def __init__(self, quorum_id: _Optional[int] = ..., lost: _Optional[_Iterable[str]] = ..., reason: _Optional[str] = ..., left: bool = ...) -> None: ...

class Waits(_message.Message):
    __slots__ = ("reason", "pauses")
    REASON_FIELD_NUMBER: _ClassVar[int]
    PAUSES_FIELD_NUMBER: _ClassVar[int]
    reason: str
    pauses: bool
    def __init__(self, reason: _Optional[str] = ..., pauses: bool = ...) -> None: ...

class Fenced(_message.Message):
    __slots__ = ("by",)
    BY_FIELD_NUMBER: _ClassVar[int]
    by: str
    def __init__(self, by: _Optional[str] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("sentence",)
    SENTENCE_FIELD_NUMBER: _ClassVar[int]
    sentence: str
    def __init__(self, sentence: _Optional[str] = ...) -> None: ...

class Down(_message.Message):
    __slots__ = ("welcome", "quorum", "grant", "revoked", "fenced", "refused", "pong", "waits")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    QUORUM_FIELD_NUMBER: _ClassVar[int]
    GRANT_FIELD_NUMBER: _ClassVar[int]
    REVOKED_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    PONG_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    quorum: bytes
    grant: Grant
    revoked: Revoked
    fenced: Fenced
    refused: Refused
    pong: Ping
    waits: Waits
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., quorum: _Optional[bytes] = ..., grant: _Optional[_Union[Grant, _Mapping]] = ..., revoked: _Optional[_Union[Revoked, _Mapping]] = ..., fenced: _Optional[_Union[Fenced, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ..., pong: _Optional[_Union[Ping, _Mapping]] = ..., waits: _Optional[_Union[Waits, _Mapping]] = ...) -> None: ...

class SupervisorHello(_message.Message):
    __slots__ = ("group", "host", "wire", "node", "nodes", "sidecar", "incarnation")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    WIRE_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    SIDECAR_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    group: str
    host: str
    wire: int
    node: int
    nodes: int
    sidecar: str
    incarnation: str
    def __init__(self, group: _Optional[str] = ..., host: _Optional[str] = ..., wire: _Optional[int] = ..., node: _Optional[int] = ..., nodes: _Optional[int] = ..., sidecar: _Optional[str] = ..., incarnation: _Optional[str] = ...) -> None: ...

class NodeReady(_message.Message):
    __slots__ = ("attempt", "meeting")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    MEETING_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    meeting: str
    def __init__(self, attempt: _Optional[int] = ..., meeting: _Optional[str] = ...) -> None: ...

class AttemptBegin(_message.Message):
    __slots__ = ("attempt", "attempt_token", "meeting")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_TOKEN_FIELD_NUMBER: _ClassVar[int]
    MEETING_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    attempt_token: str
    meeting: str
    def __init__(self, attempt: _Optional[int] = ..., attempt_token: _Optional[str] = ..., meeting: _Optional[str] = ...) -> None: ...

class AttemptOver(_message.Message):
    __slots__ = ("attempt_token", "reason", "code")
    ATTEMPT_TOKEN_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    attempt_token: str
    reason: str
    code: int
    def __init__(self, attempt_token: _Optional[str] = ..., reason: _Optional[str] = ..., code: _Optional[int] = ...) -> None: ...

class AttemptStarted(_message.Message):
    __slots__ = ("attempt", "attempt_token")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_TOKEN_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    attempt_token: str
    def __init__(self, attempt: _Optional[int] = ..., attempt_token: _Optional[str] = ...) -> None: ...

class AttemptExited(_message.Message):
    __slots__ = ("attempt", "attempt_token", "code", "reason")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_TOKEN_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    attempt_token: str
    code: int
    reason: str
    def __init__(self, attempt: _Optional[int] = ..., attempt_token: _Optional[str] = ..., code: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class AttemptHalted(_message.Message):
    __slots__ = ("attempt_token", "who", "seconds")
    ATTEMPT_TOKEN_FIELD_NUMBER: _ClassVar[int]
    WHO_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    attempt_token: str
    who: str
    seconds: float
    def __init__(self, attempt_token: _Optional[str] = ..., who: _Optional[str] = ..., seconds: _Optional[float] = ...) -> None: ...

class SupervisorDone(_message.Message):
    __slots__ = ("code", "sentence")
    CODE_FIELD_NUMBER: _ClassVar[int]
    SENTENCE_FIELD_NUMBER: _ClassVar[int]
    code: int
    sentence: str
    def __init__(self, code: _Optional[int] = ..., sentence: _Optional[str] = ...) -> None: ...

class SupervisorUp(_message.Message):
    __slots__ = ("hello", "started", "exited", "done", "ping", "ready", "halted", "rests", "held")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    EXITED_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    HALTED_FIELD_NUMBER: _ClassVar[int]
    RESTS_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    hello: SupervisorHello
    started: AttemptStarted
    exited: AttemptExited
    done: SupervisorDone
    ping: Ping
    ready: NodeReady
    halted: AttemptHalted
    rests: GroupRests
    held: State
    def __init__(self, hello: _Optional[_Union[SupervisorHello, _Mapping]] = ..., started: _Optional[_Union[AttemptStarted, _Mapping]] = ..., exited: _Optional[_Union[AttemptExited, _Mapping]] = ..., done: _Optional[_Union[SupervisorDone, _Mapping]] = ..., ping: _Optional[_Union[Ping, _Mapping]] = ..., ready: _Optional[_Union[NodeReady, _Mapping]] = ..., halted: _Optional[_Union[AttemptHalted, _Mapping]] = ..., rests: _Optional[_Union[GroupRests, _Mapping]] = ..., held: _Optional[_Union[State, _Mapping]] = ...) -> None: ...

class GroupRests(_message.Message):
    __slots__ = ("rests",)
    RESTS_FIELD_NUMBER: _ClassVar[int]
    rests: bool
    def __init__(self, rests: bool = ...) -> None: ...

class Stop(_message.Message):
    __slots__ = ("code", "sentence")
    CODE_FIELD_NUMBER: _ClassVar[int]
    SENTENCE_FIELD_NUMBER: _ClassVar[int]
    code: int
    sentence: str
    def __init__(self, code: _Optional[int] = ..., sentence: _Optional[str] = ...) -> None: ...

class Order(_message.Message):
    __slots__ = ("kind", "attempt_token", "sentence")
    KIND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_TOKEN_FIELD_NUMBER: _ClassVar[int]
    SENTENCE_FIELD_NUMBER: _ClassVar[int]
    kind: str
    attempt_token: str
    sentence: str
    def __init__(self, kind: _Optional[str] = ..., attempt_token: _Optional[str] = ..., sentence: _Optional[str] = ...) -> None: ...

class SupervisorDown(_message.Message):
    __slots__ = ("welcome", "stop", "refused", "pong", "begin", "over", "order", "next")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    PONG_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    stop: Stop
    refused: Refused
    pong: Ping
    begin: AttemptBegin
    over: AttemptOver
    order: Order
    next: int
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., stop: _Optional[_Union[Stop, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ..., pong: _Optional[_Union[Ping, _Mapping]] = ..., begin: _Optional[_Union[AttemptBegin, _Mapping]] = ..., over: _Optional[_Union[AttemptOver, _Mapping]] = ..., order: _Optional[_Union[Order, _Mapping]] = ..., next: _Optional[int] = ...) -> None: ...

class OrderRequest(_message.Message):
    __slots__ = ("kind", "group")
    KIND_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    kind: str
    group: str
    def __init__(self, kind: _Optional[str] = ..., group: _Optional[str] = ...) -> None: ...

class WatchEvent(_message.Message):
    __slots__ = ("revoked", "fenced", "refused")
    REVOKED_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    revoked: Revoked
    fenced: Fenced
    refused: Refused
    def __init__(self, revoked: _Optional[_Union[Revoked, _Mapping]] = ..., fenced: _Optional[_Union[Fenced, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ...) -> None: ...

class MemberEntry(_message.Message):
    __slots__ = ("replica_id", "attempt_id", "boot_id", "runs_on", "early")
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    RUNS_ON_FIELD_NUMBER: _ClassVar[int]
    EARLY_FIELD_NUMBER: _ClassVar[int]
    replica_id: str
    attempt_id: AttemptId
    boot_id: str
    runs_on: bool
    early: bool
    def __init__(self, replica_id: _Optional[str] = ..., attempt_id: _Optional[_Union[AttemptId, _Mapping]] = ..., boot_id: _Optional[str] = ..., runs_on: bool = ..., early: bool = ...) -> None: ...

class Absent(_message.Message):
    __slots__ = ("replica_id", "leased", "proof")
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    LEASED_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    replica_id: str
    leased: float
    proof: str
    def __init__(self, replica_id: _Optional[str] = ..., leased: _Optional[float] = ..., proof: _Optional[str] = ...) -> None: ...

class Done(_message.Message):
    __slots__ = ("group", "host", "node", "nodes", "attempt", "attempt_token", "code", "sentence", "together")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_TOKEN_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    SENTENCE_FIELD_NUMBER: _ClassVar[int]
    TOGETHER_FIELD_NUMBER: _ClassVar[int]
    group: str
    host: str
    node: int
    nodes: int
    attempt: int
    attempt_token: str
    code: int
    sentence: str
    together: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, group: _Optional[str] = ..., host: _Optional[str] = ..., node: _Optional[int] = ..., nodes: _Optional[int] = ..., attempt: _Optional[int] = ..., attempt_token: _Optional[str] = ..., code: _Optional[int] = ..., sentence: _Optional[str] = ..., together: _Optional[_Iterable[str]] = ...) -> None: ...

class Left(_message.Message):
    __slots__ = ("replica_id", "attempt_id", "state", "lingers", "ended")
    REPLICA_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    LINGERS_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    replica_id: str
    attempt_id: AttemptId
    state: State
    lingers: str
    ended: bool
    def __init__(self, replica_id: _Optional[str] = ..., attempt_id: _Optional[_Union[AttemptId, _Mapping]] = ..., state: _Optional[_Union[State, _Mapping]] = ..., lingers: _Optional[str] = ..., ended: bool = ...) -> None: ...

class Journal(_message.Message):
    __slots__ = ("wire", "quorum", "boot_id", "run", "members", "done", "open", "absent", "clock", "left", "job")
    WIRE_FIELD_NUMBER: _ClassVar[int]
    QUORUM_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    ABSENT_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    wire: int
    quorum: bytes
    boot_id: str
    run: bytes
    members: _containers.RepeatedCompositeFieldContainer[MemberEntry]
    done: _containers.RepeatedCompositeFieldContainer[Done]
    open: _containers.RepeatedScalarFieldContainer[bytes]
    absent: _containers.RepeatedCompositeFieldContainer[Absent]
    clock: str
    left: _containers.RepeatedCompositeFieldContainer[Left]
    job: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, wire: _Optional[int] = ..., quorum: _Optional[bytes] = ..., boot_id: _Optional[str] = ..., run: _Optional[bytes] = ..., members: _Optional[_Iterable[_Union[MemberEntry, _Mapping]]] = ..., done: _Optional[_Iterable[_Union[Done, _Mapping]]] = ..., open: _Optional[_Iterable[bytes]] = ..., absent: _Optional[_Iterable[_Union[Absent, _Mapping]]] = ..., clock: _Optional[str] = ..., left: _Optional[_Iterable[_Union[Left, _Mapping]]] = ..., job: _Optional[_Iterable[str]] = ...) -> None: ...
