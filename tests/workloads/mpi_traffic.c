/* Messages of all kinds between ranks, and a log of which arrived where.
 *
 * Each message carries its number. A rank writes FOLDER/RANK.log: its pid, then two lines per
 * message. `S NUMBER BEFORE AFTER` is around the call that sent it, `R NUMBER BEFORE AFTER`
 * around the call in which it had arrived, in ns of CLOCK_MONOTONIC.
 *
 *     mpirun -n N mpi_traffic FOLDER SEED ROUNDS [ignore]
 *
 * With `ignore` one receive from anybody has no status. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MOST 40000 /* longs: more than is sent without asking first */
static int rank, ranks;
static FILE *file;
static long sent;
static unsigned state;

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}
static unsigned draw(unsigned below) {
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % below;
}
/* The same on all ranks. */
static unsigned shared = 1;
static unsigned agree(unsigned below) {
    shared = shared * 1664525u + 1013904223u;
    return (shared >> 8) % below;
}
static void work(void) {
    volatile unsigned sum = 0;
    for (unsigned n = draw(200000); n; n--) sum += n;
}
static long mark(long *buffer) {
    buffer[0] = (long)rank << 32 | ++sent;
    return buffer[0];
}
static void wrote(char what, long number, uint64_t from, uint64_t to) {
    fprintf(file, "%c %ld %llu %llu\n", what, number, (unsigned long long)from,
            (unsigned long long)to);
}
#define TIMED(call) uint64_t t0 = now(); call; uint64_t t1 = now()

static void send_to(long *b, int n, int to, int tag, MPI_Comm c, int synchronous) {
    long id = mark(b);
    TIMED(if (synchronous) MPI_Ssend(b, n, MPI_LONG, to, tag, c);
          else MPI_Send(b, n, MPI_LONG, to, tag, c));
    wrote('S', id, t0, t1);
}
static void isend(long *b, int n, int to, int tag, MPI_Comm c, MPI_Request *r) {
    long id = mark(b);
    TIMED(MPI_Isend(b, n, MPI_LONG, to, tag, c, r));
    wrote('S', id, t0, t1);
}
static void receive(long *b, int from, int tag, MPI_Comm c, MPI_Status *s) {
    TIMED(MPI_Recv(b, MOST, MPI_LONG, from, tag, c, s));
    wrote('R', b[0], t0, t1);
}

static long a[8][MOST], b[8][MOST];

static void ring(void) {
    int next = (rank + 1) % ranks, last = (rank + ranks - 1) % ranks;
    int n = agree(3) ? 1 + agree(50) : MOST, synchronous = agree(2);
    work();
    if (rank % 2 || next == rank) {
        receive(b[0], last, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        send_to(a[0], n, next, 5, MPI_COMM_WORLD, 0);
    } else {
        send_to(a[0], n, next, 5, MPI_COMM_WORLD, synchronous);
        receive(b[0], last, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
}
/* The same tag again and again, all at once. */
static void exchange(MPI_Comm comm, int tag) {
    int me, size;
    MPI_Comm_rank(comm, &me);
    MPI_Comm_size(comm, &size);
    MPI_Request r[16];
    int n = 0;
    if (size < 2) return;
    int to = (me + 1) % size, from = (me + size - 1) % size;
    for (int k = 0; k < 3; k++) MPI_Irecv(b[k], MOST, MPI_LONG, from, tag, comm, &r[n++]);
    work();
    for (int k = 0; k < 3; k++) isend(a[k], 1 + k, to, tag, comm, &r[n++]);
    TIMED(MPI_Waitall(n, r, MPI_STATUSES_IGNORE));
    for (int k = 0; k < 3; k++) wrote('R', b[k][0], t0, t1);
}
static void gather_any(int with_wait) {
    MPI_Status s;
    if (rank) {
        for (int k = 0; k < 3; k++) {
            work();
            send_to(a[0], 2 + k, 0, 7 + draw(2), MPI_COMM_WORLD, 0);
        }
        return;
    }
    for (int k = 0; k < 3 * (ranks - 1); k++) {
        if (!with_wait) {
            receive(b[0], MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &s);
            continue;
        }
        MPI_Request r;
        MPI_Irecv(b[0], MOST, MPI_LONG, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &r);
        int done = 0;
        uint64_t t0 = now();
        if (with_wait == 1) {
            MPI_Wait(&r, &s);
        } else {
            while (!done) t0 = now(), MPI_Test(&r, &done, &s);
        }
        wrote('R', b[0][0], t0, now());
    }
}
static void to_self(void) {
    MPI_Request r;
    isend(a[0], 3, rank, 9, MPI_COMM_WORLD, &r);
    receive(b[0], rank, 9, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Wait(&r, MPI_STATUS_IGNORE);
}
static void both(void) {
    int next = (rank + 1) % ranks, last = (rank + ranks - 1) % ranks;
    long id = mark(a[0]);
    work();
    TIMED(MPI_Sendrecv(a[0], 4, MPI_LONG, next, 11, b[0], MOST, MPI_LONG, last, 11,
                       MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    wrote('S', id, t0, t1);
    wrote('R', b[0][0], t0, t1);
    id = mark(a[1]);
    t0 = now();
    MPI_Sendrecv_replace(a[1], 4, MPI_LONG, last, 11, next, 11, MPI_COMM_WORLD,
                         MPI_STATUS_IGNORE);
    t1 = now();
    wrote('S', id, t0, t1);
    wrote('R', a[1][0], t0, t1);
    /* To and from no rank. */
    MPI_Sendrecv(a[0], 4, MPI_LONG, MPI_PROC_NULL, 11, b[0], MOST, MPI_LONG, MPI_PROC_NULL, 11,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Send(a[0], 1, MPI_LONG, MPI_PROC_NULL, 5, MPI_COMM_WORLD);
}
/* As Python's objects are received: what is there first, then the message. */
static void probed(void) {
    if (rank == 0) {
        for (int k = 1; k < ranks; k++) {
            MPI_Message m;
            MPI_Status s;
            MPI_Mprobe(MPI_ANY_SOURCE, 13, MPI_COMM_WORLD, &m, &s);
            int n;
            MPI_Get_count(&s, MPI_BYTE, &n);
            TIMED(MPI_Mrecv(b[0], n, MPI_BYTE, &m, MPI_STATUS_IGNORE));
            wrote('R', b[0][0], t0, t1);
        }
    } else {
        work();
        send_to(a[0], 5 + rank, 0, 13, MPI_COMM_WORLD, 0);
    }
}
static void prepared(void) {
    int next = (rank + 1) % ranks, last = (rank + ranks - 1) % ranks;
    MPI_Request r[2];
    MPI_Recv_init(b[0], MOST, MPI_LONG, last, 15, MPI_COMM_WORLD, &r[0]);
    MPI_Send_init(a[0], 6, MPI_LONG, next, 15, MPI_COMM_WORLD, &r[1]);
    for (int k = 0; k < 3; k++) {
        long id = mark(a[0]);
        TIMED(MPI_Startall(2, r));
        wrote('S', id, t0, t1);
        t0 = now();
        MPI_Waitall(2, r, MPI_STATUSES_IGNORE);
        wrote('R', b[0][0], t0, now());
    }
    MPI_Request_free(&r[0]);
    MPI_Request_free(&r[1]);
}
static void cancelled(void) {
    MPI_Request r;
    MPI_Irecv(b[0], MOST, MPI_LONG, (rank + 1) % ranks, 5, MPI_COMM_WORLD, &r);
    MPI_Cancel(&r);
    MPI_Wait(&r, MPI_STATUS_IGNORE);
}
/* Requests are over in another order than they were begun. */
static void any_order(void) {
    MPI_Request r[3];
    MPI_Status s;
    int last = (rank + ranks - 1) % ranks, next = (rank + 1) % ranks;
    for (int k = 0; k < 3; k++)
        MPI_Irecv(b[k], MOST, MPI_LONG, last, 20 + k, MPI_COMM_WORLD, &r[k]);
    for (int k = 2; k >= 0; k--) send_to(a[k], 3, next, 20 + k, MPI_COMM_WORLD, 0);
    for (int k = 0; k < 3; k++) {
        int index;
        TIMED(MPI_Waitany(3, r, &index, &s));
        wrote('R', b[index][0], t0, t1);
    }
}
static void together(void) {
    work();
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Bcast(a[0], 100, MPI_LONG, ranks - 1, MPI_COMM_WORLD);
    work();
    MPI_Allreduce(a[0], b[0], 50, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    MPI_Gather(a[0], 3, MPI_LONG, b[0], 3, MPI_LONG, 0, MPI_COMM_WORLD);
}

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    char path[4096];
    snprintf(path, sizeof path, "%s/%d.log", argv[1], rank);
    file = fopen(path, "w");
    if (!file) return 3;
    fprintf(file, "P %d 0 0\n", (int)getpid());
    state = shared = atoi(argv[2]);
    state += 77 * rank;
    MPI_Comm half, twin;
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &half);
    MPI_Comm_dup(MPI_COMM_WORLD, &twin);
    for (int round = 0; round < atoi(argv[3]); round++) {
        switch (agree(12)) {
        case 0: ring(); break;
        case 1: exchange(MPI_COMM_WORLD, 5); break;
        case 2: exchange(half, 5); break;
        case 3: exchange(twin, 5); break;
        case 4: gather_any(0); together(); break;
        case 5: gather_any(1 + agree(2)); together(); break;
        case 6: to_self(); break;
        case 7: both(); break;
        case 8: probed(); break;
        case 9: prepared(); break;
        case 10: cancelled(); any_order(); break;
        case 11: together(); break;
        }
    }
    if (argc > 4) {
        /* Which message this takes, only the program knows. */
        if (rank == 0)
            for (int k = 1; k < ranks; k++)
                MPI_Recv(b[0], MOST, MPI_LONG, MPI_ANY_SOURCE, 99, MPI_COMM_WORLD,
                         MPI_STATUS_IGNORE);
        else
            MPI_Send(a[0], 1, MPI_LONG, 0, 99, MPI_COMM_WORLD);
    }
    fclose(file);
    MPI_Finalize();
    return 0;
}
