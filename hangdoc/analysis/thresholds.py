"""The thresholds of analyses and playbooks: name, value, unit, and where the value comes from.

An analysis imports them. A playbook writes the name (`progress.wait_share >= MOSTLY`). `docs/playbooks.md` lists them.
"""

from __future__ import annotations

from collections.abc import Mapping


class Threshold(float):
    """A number that decides, with its unit and its source. "chosen": no measurement, but what the value separates."""

    __slots__ = ("source", "unit")

    unit: str
    source: str

    def __new__(cls, value: float, unit: str, source: str) -> Threshold:
        self = super().__new__(cls, value)
        self.unit, self.source = unit, source
        return self


# --- shares of the looks or of the time -----------------------------------------------------------

NEARLY_ALWAYS = Threshold(0.9, "share of the looks", "chosen: nine looks in ten leave no room for a step")
MOSTLY = Threshold(0.8, "share of the looks", "a rank that does one thing in four of five looks does little else")
AT_ONE_PLACE = Threshold(0.75, "share of the ranks", "chosen: of four ranks, three at one line; the fourth is late")
USUAL = Threshold(0.75, "share of the looks", "chosen: an epoch's last batch is smaller, and a batch may be sliced")
NEARLY_EQUAL = Threshold(0.02, "share of the larger size", "chosen: the shards of a data set differ by a sample or two")
LARGELY = Threshold(0.6, "share of the looks", "chosen: a rank that does one thing more than it does all others")
HELD_UP = Threshold(
    0.6, "share of the time", "chosen: a rank that waits this long for its peers is not the one that slows the job"
)
HALF = Threshold(0.5, "share", "half of the looks, of the time or of the ranks")
IN_EACH_PART = Threshold(
    0.5, "of the share over the window", "chosen: a pattern that is in each third of the window is no single event"
)
RENEWED = Threshold(
    0.25, "share of the looks", "chosen: a batch is another tensor in half of them, as memory is used again"
)
OFTEN = Threshold(0.3, "share of the looks", "chosen: more than the few looks that find a healthy rank there")

REPORTERS = Threshold(2, "ranks", "chosen: one rank that reports a timeout says nothing of those that report none")
FIRST_CALLS = Threshold(2, "collectives", "NCCL connects the ranks of a group in its first ones")
SAME_GROUP = Threshold(
    1000, "collectives", "chosen: no rank queues so many ahead of its peers; the numbers are another group's"
)
RAS_BEHIND = Threshold(2, "operations", "NCCL's guide: RAS asks ranks one after another, so that one more is usual")
SAME_PLACE = Threshold(2, "iterations", "chosen: ranks in step differ by one, and a bar is drawn before or after it")
FEW_ABSENT = Threshold(0.5, "of the ranks that report", "chosen: a copied text lacks the lines of more ranks by chance")

# --- looks and time watched -----------------------------------------------------------------------

BACKWARD_LOOKS = Threshold(2, "looks", "chosen: on a busy host a thread may sleep once for other reasons")
TRAINING_LOOKS = Threshold(2, "looks", "chosen: one may be a trial step before the job assembles")
STILL_LOOKS = Threshold(3, "looks", "chosen: two may find the same line of two iterations")
MIN_LOOKS = Threshold(4, "looks", "chosen: with fewer, one odd look is a quarter or more")
WATCHED_LOOKS = Threshold(6, "looks", "chosen: with fewer looks, one look more or less decides about a share")
PACE_LOOKS = Threshold(8, "looks", "chosen: more than two in each third of the window")
UNDISTURBED = Threshold(2, "intervals between looks", "chosen: a debugger wakes threads, so one is too few")
STILL_S = Threshold(2.0, "s", "chosen: a step or a call that is longer is rare in a job of short steps")
WORKED_S = Threshold(4.0, "s", "chosen: work that makes no step is proof of progress only if it was watched for longer")
APART_S = Threshold(10.0, "s", "chosen: in a job that works, a rank seldom computes for longer while its peers wait")
EXPECTED_S = Threshold(
    30.0, "s", "chosen: what a rank waits for, and its peers with it, comes sooner in a job that works"
)
STALL_S = Threshold(4.0, "s", "chosen: an ordinary wait for a helper or a file is shorter")
RECENT_S = Threshold(5.0, "s", "chosen: several looks; activity within them is current")
RATE_S = Threshold(10.0, "s", "chosen: storage writes in bursts, which a shorter window takes for its rate")
RATE_WINDOW_S = Threshold(2.0, "s", "chosen: rates over a shorter window are noise")
WATCHED_S = Threshold(6.0, "s", "chosen: longer than one slow batch, so that a single pause is no pattern")
LOOP_WATCHED_S = Threshold(5.0, "s", "chosen: what a running loop does in every step is seen in that time")
HELD_S = Threshold(3.0, "s", "chosen: py-spy and CPU limiters stop a process for shorter times")
SLICE_S = Threshold(0.5, "s", "chosen: about one look, or two if a step takes as long")
MIN_GAPS = Threshold(8, "gaps between calls", "chosen: enough to know how long the next call may take")
MIN_STEPS = Threshold(5, "steps", "chosen: work that was found in so many different steps is part of each")
STEPS_ALONE = Threshold(3, "steps", "chosen: of long steps, the first and the last are cut by the window")
ROUNDS_ALONE = Threshold(4, "times", "chosen: the first and the last may be cut by the window")
ROUND_ALONE_S = Threshold(3.0, "s", "chosen: what takes longer is an evaluation, of which its user knows")
OVERDUE = Threshold(2.0, "times the longest gap between calls", "chosen: a call as late as that is not merely slow")
DRIFTED_CHANGES = Threshold(
    16, "changes of a parameter", "chosen: replicas in step are one step apart at most, and a step makes 1 to 4"
)
MIN_STEP_S = Threshold(0.002, "s per iteration", "chosen: a faster counter does not count training steps")

# --- CPU ------------------------------------------------------------------------------------------

RAN_S = Threshold(0.001, "s of CPU time", "chosen: a thread that used more has run between two looks")
PIPE_CPU_S = Threshold(0.02, "s of CPU time", "chosen: the other end of a pipe computes; a poll uses less")
ACTIVE_S = Threshold(0.03, "s of CPU time", "chosen: a worker that polls its queue uses less")
ACTIVE_BYTES = Threshold(256, "bytes", "chosen: a worker that polls its queue moves less")
IDLE_CORES = Threshold(0.05, "cores", "chosen: the housekeeping threads of a blocked rank use less")
BUSY_THREAD = Threshold(0.1, "cores", "chosen: a thread that works demands at least this much")
BUSY_HELPER = Threshold(0.2, "cores", "chosen: a helper or a neighbour that works; one that polls uses less")
LOCATED_LOOKS = Threshold(5, "looks", "chosen: of fewer, one line may have most by chance")
SOME_CPU = Threshold(0.3, "cores", "chosen: a process that computes gets more; one that polls or starves, less")
BUSY_CORES = Threshold(0.5, "cores", "chosen: a rank that computes; the threads of a blocked rank use less")
SPINS_WAITING = Threshold(
    0.7, "cores", "chosen: a rank that computes between its waits is sometimes sampled as waiting and running"
)
FULL_CORE = Threshold(0.8, "cores", "chosen: a thread that never sleeps, beside the other processes of a host")
SPINS_S = Threshold(8.0, "s", "chosen: an ordinary library call that keeps the GIL ends sooner")
HEAP_GROWTH = Threshold(2**20, "bytes", "chosen: a computation that allocates or frees more makes progress")
DEBUGGED_THREADS = Threshold(4, "threads", "chosen: so many do not all run between two looks by chance")
THROTTLED_PERIODS = Threshold(
    0.3, "share of the quota's periods", "chosen: three times the tenth at which its runbook alerts"
)
THROTTLED_TIME = Threshold(0.1, "share of the time", "chosen: the smallest loss that is worth an alert")
MUCH_THROTTLED_TIME = Threshold(
    0.2, "share of the time", "chosen: below a fifth, something else may slow the job down more"
)
OFTEN_QUEUED = Threshold(
    0.3, "share of the requested CPU time in a run queue", "chosen: with a free core for each thread it is near 0"
)
OVER_ONE_CORE = Threshold(
    1.1, "cores demanded", "one busy thread demands 1.0 at most: chosen for the ranks beside one well over one core"
)
WELL_OVER_ONE_CORE = Threshold(
    1.25, "cores demanded", "chosen: more than one busy thread and the small threads beside it"
)
CORES_OVERCOMMITTED = Threshold(
    1.6, "cores demanded per core", "chosen: halfway and more from fully used cores (1.0) to two threads per core"
)
BOUND_CORES_OVERCOMMITTED = Threshold(
    1.4, "cores demanded per core", "chosen: lower, because the binding of the ranks is evidence of its own"
)
CORES_OVERCOMMITTED_TWICE = Threshold(
    2.2, "cores demanded per core", "chosen: clearly more than two threads for each core"
)
BUSY_THREADS_PER_CORE = Threshold(2, "threads", "chosen: fewer can take turns without waiting for each other")
MANY_BUSY_THREADS_PER_CORE = Threshold(4, "threads", "chosen: twice the number at which threads compete")

# --- compilation ----------------------------------------------------------------------------------

WARM_UP = Threshold(4, "iterations", "chosen: the first shapes, then dynamic shapes, then rare branches")
RECOMPILING = Threshold(3, "iterations with a compilation", "chosen: past warm-up, two may be a rare branch")
RECOMPILING_EARLY = Threshold(
    5, "iterations with a compilation", "chosen: during warm-up, or if the loop's progress is unknown"
)
RECOMPILING_COUNTED = Threshold(
    2, "iterations with a compilation", "chosen: if torch counts RECOMPILATIONS; one step may outlast the window"
)
RECOMPILATIONS = Threshold(3, "earlier compilations", "chosen: as torch counts them; dynamic shapes need two")
RECOMPILING_SLOWS = Threshold(
    3, "times a usual step", "chosen: a guard that fails costs little, a compilation seconds to minutes"
)
MANY_COMPILATIONS = Threshold(4, "iterations", "one more than RECOMPILING")

# --- pace -----------------------------------------------------------------------------------------

LATE = Threshold(0.25, "share of the time", "chosen: less is normal on a busy host")
LATE_WITH_MORE_WORK = Threshold(0.125, "share of the time", "half of LATE: the extra work is known")
VERY_LATE = Threshold(0.4, "share of the time", "chosen: enough to be a straggler without a known cause")
LATE_IN_SLICE = Threshold(0.33, "of the share over the window", "chosen: lateness that varies, but never goes away")
MUCH_MORE_CPU = Threshold(
    1.5, "times the CPU time of other ranks", "chosen: a busy host delays every rank, and makes no such difference"
)
LESS_CPU = Threshold(1.4, "times the share of the CPU time that peers get", "chosen: ranks that share a host get alike")
MIN_OWN_SHARE = Threshold(0.1, "share of the time", "chosen: a rate over less is noise")
PEERS_UNMOVED = Threshold(
    0.1, "share of the looks", "chosen: with short steps, looks rarely find a peer where the look before did"
)
RAN_IN_SLICE = Threshold(0.02, "share of a slice", "chosen: a rank that stands still in a collective hardly runs")
MORE_WORK = Threshold(1.25, "times the size on the other ranks", "chosen: the remainder of a division is smaller")

# --- memory ---------------------------------------------------------------------------------------

FULL = Threshold(
    0.9, "share of the memory limit", "chosen: the kernel reclaims below the limit, so usage stays just under it"
)
PAGE_READ_S = Threshold(0.02, "s per major fault", "chosen: twice the seek of a hard disk; more has other causes")
OFTEN_BLOCKED = Threshold(
    0.15, "share of the samples in state D", "chosen: page faults then cost the rank a seventh of its time"
)
MEMORY_STALL = Threshold(
    0.1, "share of the time", 'the alert of the runbook of memory-pressure: "some avg60 > 10" (per cent)'
)
SOME_MEMORY_STALL = Threshold(0.01, "share of the time", "chosen: less is printed as 0 % and says nothing")
SOME_SWAP = Threshold(2**20, "bytes", "chosen: 1 MiB; a few idle pages are swapped out on healthy hosts, too")

# --- storage, locks and input ---------------------------------------------------------------------

SLOW_STORAGE = Threshold(5e6, "bytes per second", "chosen: a healthy disk or file server takes tens of MB/s")
MIN_RATE = Threshold(1024, "bytes per second", "chosen: a lower rate may be another thread's logging")
LONG_BLOCKED_S = Threshold(6.0, "s", "chosen: a healthy disk answers a read in far less")
GAP_S = Threshold(0.5, "s without data", "chosen: a shorter silence on a connection is normal")
SHORT_GAP_S = Threshold(
    0.1, "s without data", "chosen: of a rank that is always in its loader; shorter steps are not worth an alert"
)
LONG_GAP_S = Threshold(
    1.3, "s without data", "chosen: above the pauses of a healthy loader; a slow transform's batches take longer"
)
DATA_WAIT_S = Threshold(0.1, "s per step", "chosen: a shorter wait is that for the queue between worker and rank")
PART_OF_LONGEST = Threshold(0.25, "of the longest part of a step", "chosen: a shorter part hardly delays the step")
LEAST_WAIT_S = Threshold(0.001, "s", "chosen: a shorter wait for data is none, however often it is printed")
DATA_APART = Threshold(
    4.0,
    "times the wait of the usual rank",
    "chosen: ranks with a loader each differ by less, however uneven their samples",
)
PRINTED_STEPS = Threshold(2, "steps", "chosen: of several steps, the first one waits for the workers to start")
MORE_ENTRIES = Threshold(2.0, "times the entries of the other folder", "chosen: shards of one data set differ by less")
CLOCK_SKEW_S = Threshold(60.0, "s", "chosen: a file older than the job by more is older by any clock")

# --- network --------------------------------------------------------------------------------------

UNANSWERED_S = Threshold(
    3.0, "s", "Linux repeats a SYN after 1 s, and again by 3 s: a host that is there has answered one of them"
)
DEAD_AFTER_S = Threshold(3.0, "s", "Linux retransmits after 0.2, 0.6, 1.4 and 3.0 s: silence after that is no hiccup")
DEAD_REPEATS = Threshold(3, "unanswered retransmissions", "as DEAD_AFTER_S")
LOSSY_PAUSE_S = Threshold(60.0, "s", "TCP's longest pause after repeated loss of one segment: after more, it is dead")
FULL_SEGMENT = Threshold(0.9, "of a full segment", "TCP options vary by a few bytes")
PART_SEGMENT = Threshold(0.75, "of a full segment, on average", "chosen: smaller on average means not full-size")
SMALL_SEGMENT = Threshold(0.25, "of a full segment, on average", "chosen: hardly one of them can be full-size")
YOUNG_SEGMENTS = Threshold(16, "segments acknowledged", "chosen: the connection has done little more than a handshake")
CLOSER_REPEATS = Threshold(3, "segments retransmitted", "chosen: fewer are not worth a closer look")
CLOSER_BUSY = Threshold(0.2, "share of the time", "chosen: less is not worth a closer look")
LOSS_THAT_SLOWS_TCP = Threshold(0.02, "share of the segments", "chosen: TCP's throughput collapses above 2 %")
LOSSY = Threshold(0.04, "share of the segments", "chosen: every network has a burst of a few lost segments")
LOSSY_TIMES = Threshold(3, "intervals with a loss", "chosen: a single burst spans two intervals at most")
LOSSY_STEADY = Threshold(0.4, "share of the intervals with traffic", "chosen: a queue overflows less often")
LOSSY_REPEATS = Threshold(5, "segments retransmitted", "chosen: a share of fewer means nothing")
LOSSY_LIFE_REPEATS = Threshold(15, "segments retransmitted", "chosen: over the life of a connection that went on")
REPEATED_LOSS = Threshold(5, "intervals with a loss", "chosen: two more than LOSSY_TIMES")
HEAVY_LOSS = Threshold(0.1, "share of the segments", "chosen: no queue that overflows now and then loses so much")
GOOD_SEGMENTS = Threshold(50, "segments", "chosen: enough to show a loss of LOSSY twice")
GOOD_LOSS = Threshold(0.01, "share of the segments", "chosen: half of LOSS_THAT_SLOWS_TCP")
HARDLY = Threshold(0.15, "of the losses in the other direction", "chosen: 20 expected and 3 seen is no chance")
GOOD_BYTES = Threshold(0.25, "of the bytes of the slow link", "chosen: a link that carries less proves nothing")
SLOW_WINDOW_S = Threshold(4.0, "s", "chosen: several steps of a job; one large message is no pattern")
SLOW_BUSY = Threshold(0.4, "share of the time", "chosen: data in flight for less does not set the pace")
SLOW_WAITING = Threshold(0.3, "share of the samples", "chosen: segments wait when a step sends, not between steps")
WAITING_SEGMENTS = Threshold(4, "segments in flight or queued", "chosen: the link is then the bottleneck")
SHUT = Threshold(0.3, "share of the busy time", "chosen: a window closed for longer is the receiver's fault")
QUEUE_S = Threshold(0.02, "s", "chosen: the queueing delay of a full queue; a scheduler causes less")
QUEUE_TIMES = Threshold(8.0, "times the shortest round trip", "chosen: the round trip through a full queue")
SATURATED = Threshold(5.0, "times the rate of a slow link", "chosen: a full queue is proof of its own up to there")
SLOW_BYTES = Threshold(12.5e6, "bytes per second", "100 Mbit/s: slow, whatever speed the interface reports")
GIGABIT = Threshold(1000, "Mbit/s", "chosen: a saturated interface of at most this speed is the bottleneck")
FASTER_DIRECTION = Threshold(
    1.4, "times the rate of the other direction", "chosen: its acknowledgements wait in the queue of that direction"
)
SLOWER_PORT = Threshold(2, "times slower", "Ethernet and InfiniBand step their speeds by factors of 2 and more")
FAR_SLOWER_PORT = Threshold(
    4, "times slower", "chosen: 25 Gbit/s of a card beside 10 of an older one are no fault of a link"
)
UNSTABLE_STATES = Threshold(3, "states of a port in a row", "chosen: down and up again once may be its repair")
MANY_PINGS = Threshold(100, "pings", "chosen: a share of fewer says little about a loss of some percent")
LOST_PINGS = Threshold(50, "percent of the pings", "chosen: no queue that overflows loses half of a few packets")
PLAIN_PING = Threshold(1472, "bytes", "an MTU of 1500 without the headers of IPv4 and ICMP (RFC 791, 792)")
MODEL_EXCHANGES = Threshold(
    2.5, "sizes of the model", "chosen: a broadcast at the start sends and receives two at most"
)
SMALL_GRADIENTS = Threshold(
    4096.0, "bytes in a step", "chosen: gradients of about 1,000 parameters; an averaged loss or metric is smaller"
)

# --- startup --------------------------------------------------------------------------------------

SETTING_UP_S = Threshold(30.0, "s", "chosen: the usual time from the start of a process to its rendezvous")
ARRIVED_S = Threshold(5.0, "s", "chosen: a rank that stands for less may have arrived just now; gloo's mesh takes less")
PATIENCE_S = Threshold(6.0, "s", "chosen: on one host, ranks that are on their way are seen")
LINGERS_S = Threshold(60.0, "s", "chosen: a rank that sleeps before it joins waits for something that does not come")
PATIENCE_ELSEWHERE_S = Threshold(20.0, "s", "chosen: unseen hosts start their ranks in their own time")

# --- logs -----------------------------------------------------------------------------------------

LEADING_LINES = Threshold(60, "lines", "chosen: a message so close above a traceback usually tells its cause")
TRACEBACK_LINES = Threshold(200, "lines", "chosen: the longest chains of tracebacks of one error, with their notes")
LIKELY = Threshold(
    0.4,
    "probability of a class",
    "measured: of texts of other authors with a cause, 95 % of those above it (`make terms`)",
)
CLASS_LEADS = Threshold(
    1.25, "times the next class", "measured: below, half of the texts of other authors are about another"
)
THINKABLE = Threshold(0.15, "probability of a class", "chosen: one in seven is still worth a thought")
POINTED_AT = Threshold(
    0.6, "probability of a rank", "measured: of texts of other authors, 83 % of those above it (`make terms`)"
)
WORDS_WEIGH = Threshold(2.0, "times a sign of another kind", "chosen: the words around a rank count together, as two")
BEYOND_OTHERS = Threshold(0.15, "share of the larger figure", "chosen: figures of ranks in step differ by less")
WEIGHED_CLASS = Threshold(0.1, "probability of a class", "chosen: below, a class says nothing about a rank")
LEAST_TERMS = Threshold(20, "words that tell classes apart", "chosen: a few lines of a log or a table say too little")

# --- tables of the load of a host -----------------------------------------------------------------

LONG_CALL_S = Threshold(1.0, "s", "chosen: a healthy disk or file server answers a call within a tenth of it")
FULL_DISK = Threshold(
    95.0, "% of the time", "iostat(1): near 100 % a disk that serves one request at a time is saturated"
)
DISK_WAIT_MS = Threshold(
    100.0, "ms per request", "chosen: ten times the seek of a hard disk; a busy flash disk answers within a few ms"
)
MOUNT_WAIT_MS = Threshold(1000.0, "ms per call", "chosen: a loaded file server answers within tens of ms")
RESENT_CALLS = Threshold(
    1.0, "% of the calls", "chosen: over TCP, the client of NFS repeats a call after a minute only"
)
STALLED_BY_IO = Threshold(50.0, "% of the time", "chosen: half of the time, every task waits for a disk or file server")
IO_WAIT = Threshold(30.0, "% of the CPU time", "chosen: on a host of many cores, so much takes many blocked threads")
STALLED_BY_MEMORY = Threshold(20.0, "% of the time", "chosen: twice MEMORY_STALL, as the whole host is meant")
SWAPPED_KIB = Threshold(4096.0, "KiB per second", "chosen: 1,000 pages, each of which a thread waits for")
RECLAIMING = Threshold(50.0, "% of a core", "chosen: kswapd of a host with free memory uses less than 1 %")
NO_MEMORY = Threshold(0.02, "of the memory", "chosen: so little is left to the page cache that programs are read again")
NO_SWAP = Threshold(0.1, "of the swap", "the limit at which earlyoom begins to kill")
BUSY_PROCESS = Threshold(400.0, "% of a core", "chosen: a program that uses less leaves cores on any host with GPUs")
IDLE_HOST = Threshold(10.0, "% of the CPU time", "chosen: with more, a process that wants a core gets one")
QUEUED = Threshold(80.0, "% of the time", "chosen: with a core for each thread, hardly any task waits for one")
STOLEN = Threshold(20.0, "% of the CPU time", "chosen: the hypervisor gives a fifth of it to other machines")
CORRUPTED_FRAMES = Threshold(100, "frames", "chosen: a good cable corrupts fewer in a day")
RESENT_APART = Threshold(10, "times the retransmissions to other peers", "chosen: a shared queue drops for every peer")
MANY_RESENT = Threshold(1000, "segments", "chosen: a share of fewer, since the boot of the host, says nothing")

# --- figures in texts -----------------------------------------------------------------------------

BARELY_SLOWER = Threshold(1.2, "times that of other ranks", "chosen: counts only where the others agree (WIDE_GAP)")
WIDE_GAP = Threshold(
    3.0, "times the spread of the others", "chosen: stages of a pipeline and shards of data differ gradually"
)
MUCH_MORE_OF_TWO = Threshold(2.0, "times that of the other", "chosen: two ranks seldom agree to better than that")
LONG_WAIT_S = Threshold(0.01, "s", "chosen: below 10 ms, the order in which ranks arrive is chance")
FIRST_STEP = Threshold(1, "number of a step", "chosen: it compiles, allocates, and waits for workers to start")
GRADIENT_ROUNDING = Threshold(
    1e-3, "of the largest value", "chosen: reduced gradients agree to more digits than a log has"
)

BUSY_GPU = Threshold(90, "% utilisation", "chosen: a kernel runs nearly all the time; a spinning NCCL kernel counts")
IDLE_GPU = Threshold(5, "% utilisation", "chosen: no kernel but that of a monitor")
IDLE_POWER = Threshold(0.4, "of the power limit", "chosen: a GPU that spins in NCCL draws a sixth to a third of it")
LOW_CLOCK = Threshold(
    0.75, "times the clock of other GPUs", "chosen: boost clocks of equal GPUs differ by a few percent"
)
MANY_PERIODS = Threshold(
    100, "periods of a CPU quota", "chosen: ten seconds; the start of a process is always throttled"
)
LOAD_APART = Threshold(
    3, "times the load of other hosts", "chosen: ranks of a job use about as many cores on each host"
)
LINK_ERRORS = Threshold(100, "errors of NVLink", "chosen: a link retrains and replays now and then")
LINK_ERRORS_APART = Threshold(10, "times the errors of other GPUs", "chosen: one link of many is at fault")
SLOWER_RUN = Threshold(1.5, "times slower", "chosen: paths across more switches, and equal hosts, differ by a tenth")
RATE_COLLAPSE = Threshold(
    3.0, "times the rate with larger messages", "chosen: another algorithm or protocol of NCCL costs less"
)
SOCKET_RATE = Threshold(1.5, "GB/s", "10 Gb/s Ethernet carries 1.25; GPUs of one host exchange ten times that")
ONE_CORE = Threshold(2, "CPUs", "a core has two hardware threads at most; launchers bind a process to one core")
MOST_CORES_UNUSED = Threshold(4, "times the CPUs that all processes may use", "chosen: who binds sockets uses half")
FEW_CORES = Threshold(0.34, "times the cores of other processes", "chosen: no launcher splits a host so unevenly")


THRESHOLDS: Mapping[str, Threshold] = {name: one for name, one in globals().items() if isinstance(one, Threshold)}


def names() -> tuple[str, ...]:
    """The names that playbooks may write."""
    return tuple(THRESHOLDS)


def is_name(name: str) -> bool:
    return name in THRESHOLDS


def value(name: str) -> float:
    return float(THRESHOLDS[name])


ROUNDING = Threshold(1e-5, "of the largest value", "float32 has 24 bits; a sum of a billion terms loses some of them")
COMPARABLE_RANKS = Threshold(3, "ranks", "of two that differ, nothing shows which one is usual")
