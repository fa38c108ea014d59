/* What drivers may know and keep of threads in Redis: the driver_host functions, on the queue's
 * connection. */
#ifndef SANDPIPER_WORKER_THREAD_RECORDS_H
#define SANDPIPER_WORKER_THREAD_RECORDS_H

#include "worker/driver.h"
#include "worker/queue/queue.h"

/* Fills the function pointers of host and its data (the queue, which outlives every driver). */
void thread_records_attach(struct driver_host *host, struct queue *q);

#endif
