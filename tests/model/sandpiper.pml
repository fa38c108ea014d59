/* A model of the thread leases: claim, park, release, stall, lease recovery. Run by tests/model/run (`make model`).
 *
 * Each inline below that says "script" is one Lua script of worker/queue/lua (or the part of it that matters here),
 * and is atomic as a script is. Between scripts anything may happen: a worker may be slow for as long as it likes
 * (SIGSTOP, a full loop), die, or lose its lock to time; jobs may be promoted, cancelled or removed by hand. A lock
 * that expires stands for every reason why it does. The line of wait is a set here, for lifo and others' jobs may bring
 * any job of it next; so what is shown holds for each order in which jobs are claimed. Only jobs that fairness has
 * sent to its back come up in the order in which they went there, and a prioritized one (PRIO) when wait is empty.
 *
 * What is asserted:
 *   holder     at most one job of a thread is held under a valid lock
 *   overlap    no code of a thread is delivered while other code of it runs
 *   once       the code of a job is delivered at most once (no job here is idempotent)
 *   order      jobs of a thread start in the order in which they were first seen by a claim
 *   end        a job ends once
 * and that the model cannot stop before every job has ended (spin: no invalid end state), nor go round for ever (no
 * non-progress cycle): no job is lost, no thread is stuck.
 *
 * Faults that can be planted, each of which is then found: NO_LEASE_CHECK, NO_MARK, NO_TOKEN_CHECK, NO_SETTLE,
 * NO_DEADLINE, NO_WAKE_PASS, NO_PLACE, NO_BACK, PRIO_BACK.
 */
#ifndef JOBS
#define JOBS 3
#endif
#ifndef WORKERS
#define WORKERS 2
#endif
#ifndef ALONE
#define ALONE 0 /* jobs that have a thread of their own; the others share one */
#endif
#ifndef EXPIRIES
#define EXPIRIES 1 /* of locks whose worker is alive */
#endif
#ifndef CRASHES
#define CRASHES 1
#endif
#ifndef RETRIES
#define RETRIES 1
#endif
#ifndef HANDS
#define HANDS 1 /* removals, cancels and promotions by hand, together */
#endif
#ifdef PRIO
#define prio(j) ((j) == JOBS - 1) /* the last job has a priority */
#else
#define prio(j) false
#endif
#define MAX_STALLED 1

#define NONE      JOBS /* no job */
#define THREAD(j) (((j) + ALONE >= JOBS) * ((j) + ALONE + 1 - JOBS)) /* 0: the shared one */
#define THREADS   (ALONE + 1)

mtype = { WAIT, ACTIVE, PARKED, RETRY, ENDED, GONE };

mtype where[JOBS];   /* the line it is in; PARKED and RETRY are both `delayed` */
byte claims[JOBS];   /* how often claimed: the token of its last claim */
byte lock[JOBS];     /* token, or 0 */
byte mark[JOBS];     /* sp:run: token, or 0 */
bool defa[JOBS];     /* to be failed: stalled too often */
byte stalls[JOBS];
byte place[JOBS];    /* score in parked:<T>, or 0 */
byte lease[THREADS]; /* job, or NONE */
byte turned[JOBS];   /* sp:b: went to the back of wait as the how manieth, or 0 */
byte back[THREADS];  /* how manieth the thread's last such job was */
byte through[THREADS]; /* as how manieth the last of them came through */

/* What only the assertions and the bounds look at. */
byte kernel[THREADS]; /* whose code runs, or NONE */
byte seen[JOBS];      /* when first seen by a claim, or 0 */
byte looks;
bool holds[JOBS];     /* was claimed with the lease */
bool doomed[JOBS];    /* cancelled: only to be failed */
bool delivered[JOBS];
bool orphan[JOBS];    /* its worker is dead: nobody renews its lock */
byte expiries, crashes, hands, retries;
byte over;            /* jobs that have ended or are gone */

#define delayed(j) (where[j] == PARKED || where[j] == RETRY)
#define alive(j)   (where[j] != ENDED && where[j] != GONE)
/* spHolds of threads.lua: the holder's hash is there without finishedOn, and it is locked or in a line. */
#define valid(t)   (lease[t] != NONE && alive(lease[t]))

/* revive.lua: a lock that expired is made again while nobody has drawn a conclusion from it. */
#ifdef NO_TOKEN_CHECK
#define fenced(j, mine) (where[j] == GONE)
#else
#define fenced(j, mine) (!(lock[j] == mine || lock[j] == 0 && mark[j] == mine && where[j] == ACTIVE))
#endif

/* Nothing of the thread is on its way, and something is parked. */
#define still(j, t)  (THREAD(j) != t || where[j] != WAIT && where[j] != ACTIVE)
#define parked(j, t) (THREAD(j) == t && place[j] != 0 && delayed(j))
#if JOBS == 2
#define stuck(t) (still(0, t) && still(1, t) && (parked(0, t) || parked(1, t)))
#elif JOBS == 3
#define stuck(t) (still(0, t) && still(1, t) && still(2, t) && (parked(0, t) || parked(1, t) || parked(2, t)))
#else
#define stuck(t) (still(0, t) && still(1, t) && still(2, t) && still(3, t) \
    && (parked(0, t) || parked(1, t) || parked(2, t) || parked(3, t)))
#endif

/* What a claim may find next in wait or prioritized. */
#define behind(j, k) (THREAD(j) == THREAD(k) && where[k] == WAIT && place[k] == 0 && turned[k] != 0 && turned[k] < turned[j])
#if JOBS == 2
#define plain_waits (where[0] == WAIT || where[1] == WAIT && !prio(1))
#define is_behind(j) (behind(j, 0) || behind(j, 1))
#elif JOBS == 3
#define plain_waits (where[0] == WAIT || where[1] == WAIT || where[2] == WAIT && !prio(2))
#define is_behind(j) (behind(j, 0) || behind(j, 1) || behind(j, 2))
#else
#define plain_waits (where[0] == WAIT || where[1] == WAIT || where[2] == WAIT || where[3] == WAIT && !prio(3))
#define is_behind(j) (behind(j, 0) || behind(j, 1) || behind(j, 2) || behind(j, 3))
#endif
#define comes_up(j) (where[j] == WAIT && (prio(j) -> !plain_waits : place[j] != 0 || turned[j] == 0 || !is_behind(j)))

/* spKeepPlace of threads.lua: the first look decides. */
inline keep_place(j) {
    k = 0; best = 0;
    do
    :: k < JOBS ->
        if :: THREAD(k) == THREAD(j) && place[k] > best -> best = place[k] :: else fi;
        k++
    :: else -> break
    od;
#ifdef NO_PLACE
    place[j] = 1
#else
    if :: place[j] == 0 -> place[j] = best + 1 :: else fi
#endif
}

/* spWakeHead of threads.lua; the head (or NONE) is left in `head`. */
inline wake_head(t, me) {
    do
    :: true ->
        k = 0; best = 255; head = NONE;
        do
        :: k < JOBS ->
            if
            :: THREAD(k) == t && place[k] != 0 && place[k] < best -> best = place[k]; head = k
            :: else
            fi;
            k++
        :: else -> break
        od;
        if
        :: head == NONE || head == me -> break
        :: else ->
            if
            :: delayed(head) -> where[head] = WAIT; break
            :: where[head] == WAIT || where[head] == ACTIVE -> break
            :: else -> place[head] = 0
            fi
        fi
    od
}

/* spRelease of threads.lua */
inline release(j) {
    if :: lease[THREAD(j)] == j -> lease[THREAD(j)] = NONE :: else fi;
    place[j] = 0;
    if :: lease[THREAD(j)] == NONE -> wake_head(THREAD(j), NONE) :: else fi
}

/* prepareJobForProcessing: the job, with what it says by then, is put into a worker's hands. */
inline hand_over(j) {
    claims[j]++;
    lock[j] = claims[j];
    orphan[j] = false;
    turned[j] = 0;
    lost = mark[j] != 0;
    only_fail = defa[j] || doomed[j];
    token = claims[j];
    job = j
}

/* spTurnBack of threads.lua */
inline turn_back(j) {
    where[j] = WAIT; may = false;
    if
    :: prio(j) -> keep_place(j)
    :: else ->
        back[t] = (back[t] > through[t] -> back[t] : through[t]) + 1;
        turned[j] = back[t]
    fi
}

#ifdef PRIO_BACK
#define may_follow(j) true
#else
#define may_follow(j) !prio(j)
#endif
#ifdef NO_BACK
#define follows(j, t) false
#else
/* Others of its thread went to the back and are not through yet: it follows them there. (To know the last one by its
 * id is not enough: when that one is removed or cancelled, those before it are overtaken.) */
#define follows(j, t) (turned[j] == 0 && may_follow(j) && back[t] > through[t])
#endif

/* The job gets the lease; here is where a second holder or a wrong order would show. */
inline take_lease(j) {
    k = 0;
    do
    :: k < JOBS ->
        assert(k == j || THREAD(k) != t || lock[k] == 0 || !holds[k] || where[k] != ACTIVE); /* holder */
        assert(k == j || THREAD(k) != t || seen[k] == 0 || seen[k] > seen[j] || !alive(k) || defa[k] || doomed[k]); /* order */
        k++
    :: else -> break
    od;
    lease[t] = j; place[j] = 0; holds[j] = true;
    if :: turned[j] != 0 -> through[t] = turned[j] :: else fi
}

/* script claim.lua: spMayRun of threads.lua decides about a job of wait. `job` stays NONE when it was put aside. */
inline claim(j, aside) {
    d_step {
        where[j] = ACTIVE; t = THREAD(j); may = true; head = NONE;
        if :: seen[j] == 0 -> looks++; seen[j] = looks :: else fi;
        if
        :: defa[j] && mark[j] == 0 -> hand_over(j)
        :: else ->
#ifndef NO_LEASE_CHECK
            if
            :: lease[t] == j
            :: lease[t] != j && follows(j, t) -> turn_back(j)
            :: lease[t] != j && !follows(j, t) && valid(t) -> keep_place(j); where[j] = PARKED; may = false
            :: else ->
                wake_head(t, j);
                if
                :: head != NONE && head != j -> keep_place(j); where[j] = PARKED; may = false
                :: head == NONE && aside -> turn_back(j)
                :: else
                fi
            fi;
#endif
            if :: may -> take_lease(j); hand_over(j) :: else fi
        fi;
        t = 0; k = 0; best = 0; head = 0; may = false
    }
}

/* script moveToFinished with fetchNextJob.lua: the end and the release are one call. `ok` false: not ours any more. */
inline finish(j) {
    d_step {
        ok = !fenced(j, token);
        if
        :: ok ->
            assert(where[j] != ENDED); /* end */
            where[j] = ENDED; lock[j] = 0; mark[j] = 0; over++;
            if :: kernel[THREAD(j)] == j && !lost -> kernel[THREAD(j)] = NONE :: else fi; /* our own run is over */
            release(j)
        :: else
        fi;
        k = 0; best = 0; head = 0
    }
}

/* script moveToDelayed (or retryJob): the lease stays with the job, so it keeps its place. */
inline retry(j) {
    d_step {
        ok = !fenced(j, token);
        if :: ok -> where[j] = RETRY; lock[j] = 0; mark[j] = 0; retries++ :: else fi
    }
}

/* script reply.lua with the first message of a run: the mark, fenced. */
inline set_mark(j) {
    d_step {
        ok = !fenced(j, token);
#ifndef NO_MARK
        if :: ok -> lock[j] = token; mark[j] = token :: else fi
#else
        if :: ok -> lock[j] = token :: else fi
#endif
    }
}

/* The code goes to the sandbox; not when the lock may have expired since the mark was set (run_code.c). */
inline deliver(j) {
    d_step {
#ifdef NO_DEADLINE
        ok = true;
#else
        ok = lock[j] == token;
#endif
        if
        :: ok ->
            assert(!delivered[j]); /* once */
            assert(kernel[THREAD(j)] == NONE); /* overlap */
            delivered[j] = true;
            kernel[THREAD(j)] = j
        :: else
        fi
    }
}

/* A run of ours that is not ours any more, or a lost one, is stopped. */
inline stop_code(j) {
    d_step { if :: kernel[THREAD(j)] == j -> kernel[THREAD(j)] = NONE :: else fi }
}

/* The worker dies; what comes up in its place knows nothing of its jobs. */
inline die() {
    crashes++;
    if :: lock[job] == token -> orphan[job] = true :: else fi
}

proctype worker() {
    byte job = NONE, token, t, k, best, head, which;
    bool may, ok, lost, only_fail;
idle:
    atomic {
        job = NONE; token = 0; ok = false; lost = false; only_fail = false;
        if
        :: over == JOBS -> goto gone
        :: comes_up(0) -> which = 0
        :: comes_up(1) -> which = 1
#if JOBS > 2
        :: comes_up(2) -> which = 2
#endif
#if JOBS > 3
        :: comes_up(3) -> which = 3
#endif
        fi;
        if
        :: claim(which, false)
        :: place[which] == 0 && turned[which] == 0 -> claim(which, true)
        fi;
        which = 0;
        if :: job == NONE -> goto idle :: else fi
    }
    if
    :: lost -> /* its code was delivered, as far as anybody knows: WorkerLost */
#ifndef NO_SETTLE
        stop_code(job);
#endif
        finish(job);
        goto idle
    :: !lost && only_fail -> finish(job); goto idle
    :: !lost && !only_fail && retries < RETRIES -> retry(job); goto idle
    :: atomic { !lost && !only_fail && crashes < CRASHES -> die() } -> goto idle
    :: !lost && !only_fail
    fi;
again:
    set_mark(job);
    if
    :: !ok -> goto idle
    :: atomic { ok && crashes < CRASHES -> die() } -> goto idle
    :: ok
    fi;
    deliver(job);
    if
    :: !ok -> goto again /* asks once more, and is told whose the job is */
    :: atomic { ok && crashes < CRASHES -> die() } -> goto idle
    :: ok
    fi;
    finish(job);
    if :: !ok -> stop_code(job) :: ok fi;
    goto idle;
gone:
    skip
}

/* script cancel.lua: out of its line and into our hands, without its thread, only to be failed. */
inline cancel(j) {
    d_step {
        alive(j) && mark[j] == 0 && (where[j] == WAIT || delayed(j)) && hands < HANDS;
        hands++; where[j] = ACTIVE; place[j] = 0; doomed[j] = true;
        hand_over(j)
    };
    finish(j)
}

/* obliterate and the like: the job is gone whatever it does. (Its kernel runs one cell at a time by itself.) */
inline remove(j) {
    d_step {
        alive(j) && hands < HANDS;
        hands++; where[j] = GONE; lock[j] = 0; mark[j] = 0; turned[j] = 0; over++;
        if :: kernel[THREAD(j)] == j -> kernel[THREAD(j)] = NONE :: else fi
    }
}

/* What comes to a job from outside: time, the stalled pass, hands. */
proctype fate(byte j) {
    byte job = NONE, token, k, best, head;
    bool ok, lost, only_fail;
    do
    :: over == JOBS -> break
    :: d_step { lock[j] != 0 && (orphan[j] || expiries < EXPIRIES) ->
        if :: !orphan[j] -> expiries++ :: else fi;
        lock[j] = 0; orphan[j] = false }
    :: d_step { where[j] == RETRY -> where[j] = WAIT } /* promoteDelayedJobs */
    /* script moveStalledJobsToWait */
    :: d_step { where[j] == ACTIVE && lock[j] == 0 ->
        where[j] = WAIT; stalls[j]++;
        if :: stalls[j] > MAX_STALLED -> defa[j] = true :: else fi }
    :: d_step { where[j] == PARKED && hands < HANDS -> hands++; where[j] = WAIT } /* job.promote() */
    :: cancel(j)
    :: remove(j)
    od
}

/* script wake.lua: threads without a valid holder get their first job woken. */
proctype wake_pass(byte t) {
    byte k, best, head;
    do
    :: over == JOBS -> break
#ifndef NO_WAKE_PASS
    :: d_step { !valid(t) && stuck(t) -> wake_head(t, NONE); k = 0; best = 0; head = 0 }
#endif
    od
}

init {
    byte i;
    atomic {
        do :: i < JOBS -> where[i] = WAIT; run fate(i); i++ :: else -> break od;
        i = 0;
        do :: i < THREADS -> lease[i] = NONE; kernel[i] = NONE; run wake_pass(i); i++ :: else -> break od;
        i = 0;
        do :: i < WORKERS -> run worker(); i++ :: else -> break od
    }
}
