/* The Lua scripts the worker calls: BullMQ's own, expanded at build time, and ours
 * (worker/queue/lua). */
#ifndef SANDPIPER_WORKER_QUEUE_SCRIPTS_H
#define SANDPIPER_WORKER_QUEUE_SCRIPTS_H

#include "common/redis.h"

extern const char *const script_bullmq_version; /* "6.7.0" */

/* BullMQ 6.7.0; KEYS and ARGV are in the head of each file of the package. */
extern const struct redis_script script_moveToFinished;          /* 14 keys */
extern const struct redis_script script_moveToDelayed;           /* 11 keys */
extern const struct redis_script script_retryJob;                /* 11 keys */
extern const struct redis_script script_moveStalledJobsToWait;   /* 9 keys */
extern const struct redis_script script_moveJobFromActiveToWait; /* 9 keys */
extern const struct redis_script script_moveToWaitingChildren;   /* 7 keys */
extern const struct redis_script script_updateJobScheduler;      /* 12 keys */
extern const struct redis_script script_addLog;                  /* 2 keys */
extern const struct redis_script script_updateProgress;          /* 3 keys */

/* Ours; KEYS and ARGV are in the head of worker/queue/lua/<name>.lua. */
extern const struct redis_script script_claim;   /* 1 key */
extern const struct redis_script script_turn;    /* 1 key */
extern const struct redis_script script_reply;   /* 1 key */
extern const struct redis_script script_removed; /* 5 keys */
extern const struct redis_script script_file;    /* 4 keys */
extern const struct redis_script script_locks;   /* 2 keys */
extern const struct redis_script script_wake;    /* 1 key */
extern const struct redis_script script_others;  /* 1 key */
extern const struct redis_script script_admit;   /* 12 keys */
extern const struct redis_script script_stats;   /* 1 key */

extern const struct redis_script script_record;  /* 1 key */
extern const struct redis_script script_sweep;   /* 1 key */
extern const struct redis_script script_release; /* 1 key */

extern const struct redis_script script_cancel;       /* 1 key */
extern const struct redis_script script_cancelthread; /* 3 keys */

#endif
