/*
 * A file system of an ordinary user that does not answer, to attack who reads
 * other users' files.
 *
 *   hang_fs MODE FILE MOUNT_POINT [PROGRAM ARGUMENT...]
 *
 * In user and mount namespaces of its own it shows, at MOUNT_POINT, a directory
 * in which every name is the regular file FILE, and executes PROGRAM (without
 * one it waits). It needs no privileges and no libfuse: it speaks the protocol of
 * /dev/fuse. Root may not enter a FUSE file system of another user namespace. So
 * MOUNT_POINT is an overlay above it, which everybody may enter: the overlay
 * reads what is below it with the rights of its owner.
 *
 * MODE is what processes of other sessions get; the own ones are served:
 *   serve          the file.
 *   hang-lookup, hang-getattr, hang-open, hang-read
 *                  no answer to that request, ever.
 *   block-read     no answer to anything from the first read on, nor is it taken from
 *                  the kernel: processes that wait then can be killed.
 *   slow-N         every answer after N milliseconds.
 *   own            as serve, but without the overlay: only the user may enter, not even
 *                  root.
 *   root-DIR       the file, as root's: it is served at DIR first, where fusermount3
 *                  mounts it outside of these namespaces; a server may name any
 *                  owner there.
 * SIGUSR1 to the server makes it stop answering at all.
 *
 * It prints "server PID" and "ready", and exits with 77 where the machine does
 * not allow user namespaces, FUSE or overlays to users.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define UNSUPPORTED 77
#define BUFFER (256 << 10)

static volatile sig_atomic_t silent;
static const char *mode;
/* Where fusermount3 mounts, if it does. */
static const char *outside;
static int served;
static pid_t session;

static void on_signal(int number)
{
	silent = number;
}

static void need(int ok, const char *what)
{
	if (ok)
		return;
	fprintf(stderr, "hang_fs: %s: %s\n", what, strerror(errno));
	exit(UNSUPPORTED);
}

static void put(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY);
	need(fd >= 0 && write(fd, text, strlen(text)) >= 0, path);
	close(fd);
}

/* Whether a request comes from a process that does not belong to us. */
static int is_strange(const struct fuse_in_header *in)
{
	pid_t other = in->pid ? getsid((pid_t)in->pid) : session;
	return other != session;
}

static int is_hung(const struct fuse_in_header *in)
{
	if (silent)
		return 1;
	if (strncmp(mode, "hang-", 5) || !is_strange(in))
		return 0;
	switch (in->opcode) {
	case FUSE_LOOKUP:
		return !strcmp(mode, "hang-lookup");
	case FUSE_GETATTR:
		return !strcmp(mode, "hang-getattr");
	case FUSE_OPEN:
		return !strcmp(mode, "hang-open");
	case FUSE_READ:
		return !strcmp(mode, "hang-read");
	default:
		return 0;
	}
}

static void reply(int fd, uint64_t unique, int error, const void *data, size_t size)
{
	static char out[BUFFER];
	struct fuse_out_header header = {
		.len = (uint32_t)(sizeof header + size),
		.error = error,
		.unique = unique,
	};
	memcpy(out, &header, sizeof header);
	if (size)
		memcpy(out + sizeof header, data, size);
	/* A request that was interrupted takes no answer. */
	if (write(fd, out, header.len) < 0)
		return;
}

static struct fuse_attr attributes(uint64_t node)
{
	struct stat st;
	memset(&st, 0, sizeof st);
	fstat(served, &st);
	struct fuse_attr attr = {
		.ino = node,
		.mode = node == FUSE_ROOT_ID ? S_IFDIR | 0755 : S_IFREG | 0755,
		.nlink = 1,
		.uid = outside ? 0 : getuid(),
		.gid = outside ? 0 : getgid(),
		.blksize = 4096,
	};
	if (node != FUSE_ROOT_ID) {
		attr.size = (uint64_t)st.st_size;
		attr.blocks = (attr.size + 511) / 512;
	}
	return attr;
}

static void answer(int fd, const struct fuse_in_header *in, const void *body)
{
	static char data[BUFFER / 2];
	switch (in->opcode) {
	case FUSE_INIT: {
		struct fuse_init_out out = {
			.major = FUSE_KERNEL_VERSION,
			.minor = FUSE_KERNEL_MINOR_VERSION,
			.max_readahead = 65536,
			.max_write = 4096,
			.max_background = 16,
			.congestion_threshold = 16,
		};
		return reply(fd, in->unique, 0, &out, sizeof out);
	}
	case FUSE_FORGET:
	case FUSE_BATCH_FORGET:
	case FUSE_INTERRUPT:
		return;
	case FUSE_LOOKUP: {
		/*
		 * Names stay valid: the overlay would ask again with the user id of
		 * whoever looks, which this user namespace does not know. Attributes do
		 * not.
		 */
		struct fuse_entry_out out = { .nodeid = 2, .generation = 1, .entry_valid = 3600 };
		out.attr = attributes(2);
		return reply(fd, in->unique, 0, &out, sizeof out);
	}
	case FUSE_GETATTR: {
		struct fuse_attr_out out = { .attr = attributes(in->nodeid) };
		return reply(fd, in->unique, 0, &out, sizeof out);
	}
	case FUSE_OPEN:
	case FUSE_OPENDIR: {
		struct fuse_open_out out = { 0 };
		return reply(fd, in->unique, 0, &out, sizeof out);
	}
	case FUSE_READ: {
		const struct fuse_read_in *read = body;
		size_t size = read->size < sizeof data ? read->size : sizeof data;
		ssize_t n = pread(served, data, size, (off_t)read->offset);
		return reply(fd, in->unique, n < 0 ? -errno : 0, data, n < 0 ? 0 : (size_t)n);
	}
	case FUSE_STATFS: {
		struct fuse_statfs_out out = { .st = { .bsize = 4096, .namelen = 255 } };
		return reply(fd, in->unique, 0, &out, sizeof out);
	}
	case FUSE_READDIR:
	case FUSE_READDIRPLUS:
	case FUSE_RELEASE:
	case FUSE_RELEASEDIR:
		return reply(fd, in->unique, 0, NULL, 0);
	default:
		return reply(fd, in->unique, -ENOSYS, NULL, 0);
	}
}

static void serve(int fd)
{
	static char request[BUFFER];
	struct sigaction action = { .sa_handler = on_signal };
	sigaction(SIGUSR1, &action, NULL);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (;;) {
		ssize_t n = read(fd, request, sizeof request);
		if (n < 0 && errno == ENODEV)
			_exit(0);
		if (n < (ssize_t)sizeof(struct fuse_in_header))
			continue;
		const struct fuse_in_header *in = (const void *)request;
		if (is_hung(in))
			continue;
		while (!strcmp(mode, "block-read") && is_strange(in) && in->opcode == FUSE_READ)
			pause();
		if (!strncmp(mode, "slow-", 5) && is_strange(in)) {
			long ms = atol(mode + 5);
			struct timespec wait = { ms / 1000, ms % 1000 * 1000000 };
			nanosleep(&wait, NULL);
		}
		answer(fd, in, request + sizeof *in);
	}
}

/* User and mount namespaces in which this user may mount. */
static void own_namespaces(void)
{
	char map[64];
	unsigned uid = getuid(), gid = getgid();
	need(!unshare(CLONE_NEWUSER | CLONE_NEWNS), "unshare");
	put("/proc/self/setgroups", "deny");
	snprintf(map, sizeof map, "%u %u 1\n", uid, uid);
	put("/proc/self/uid_map", map);
	snprintf(map, sizeof map, "%u %u 1\n", gid, gid);
	put("/proc/self/gid_map", map);
	need(!mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL), "private mounts");
}

/* Mounts as users may outside of namespaces of their own; the way to the kernel. */
static int mount_outside(void)
{
	int pair[2];
	need(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair), "socketpair");
	pid_t helper = fork();
	need(helper >= 0, "fork");
	if (!helper) {
		char number[16];
		snprintf(number, sizeof number, "%d", pair[0]);
		setenv("_FUSE_COMMFD", number, 1);
		close(pair[1]);
		execlp("fusermount3", "fusermount3", "-o", "fsname=hang_fs", "--", outside, NULL);
		_exit(1);
	}
	close(pair[0]);
	char byte, space[CMSG_SPACE(sizeof(int))];
	struct iovec data = { &byte, 1 };
	struct msghdr message = {
		.msg_iov = &data,
		.msg_iovlen = 1,
		.msg_control = space,
		.msg_controllen = sizeof space,
	};
	need(recvmsg(pair[1], &message, MSG_CMSG_CLOEXEC) > 0, "fusermount3");
	struct cmsghdr *control = CMSG_FIRSTHDR(&message);
	need(control != NULL, "fusermount3");
	int fd;
	memcpy(&fd, CMSG_DATA(control), sizeof fd);
	return fd;
}

/* Makes a directory and those above it, in a file system of our own where one that
 * is there may not be changed. */
static void make(const char *path)
{
	char above[4096];
	struct stat st;
	if (!stat(path, &st))
		return;
	snprintf(above, sizeof above, "%s", path);
	char *slash = strrchr(above, '/');
	need(slash && slash != above, path);
	*slash = 0;
	make(above);
	if (mkdir(path, 0755)) {
		need(!mount("none", above, "tmpfs", 0, "mode=755"), above);
		need(!mkdir(path, 0755), path);
	}
}

int main(int argc, char **argv)
{
	if (argc < 4) {
		fprintf(stderr, "usage: hang_fs MODE FILE MOUNT_POINT [PROGRAM...]\n");
		return 2;
	}
	mode = argv[1];
	const char *point = argv[3];
	served = open(argv[2], O_RDONLY | O_CLOEXEC);
	need(served >= 0, argv[2]);
	if (setsid() < 0 && getsid(0) != getpid())
		need(0, "setsid");
	session = getsid(0);
	if (!strncmp(mode, "root-", 5))
		outside = mode + 5;
	int fd = outside ? mount_outside() : -1;
	own_namespaces();
	if (!outside)
		fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);
	need(fd >= 0, "/dev/fuse");
	make(point);
	need(!mount("none", point, "tmpfs", 0, "mode=755"), "tmpfs");
	need(!chdir(point) && !mkdir("fuse", 0755) && !mkdir("empty", 0755), point);
	char options[4096];
	int own = !strcmp(mode, "own");
	snprintf(options, sizeof options, "fd=%d,rootmode=40755,user_id=%u,group_id=%u%s",
		 fd, getuid(), getgid(), own ? "" : ",allow_other");
	need(outside || !mount("hang_fs", own ? point : "fuse", "fuse", MS_NODEV, options), "fuse");
	pid_t server = fork();
	need(server >= 0, "fork");
	if (!server)
		serve(fd);
	close(fd);
	snprintf(options, sizeof options, "lowerdir=%s:empty", outside ? outside : "fuse");
	need(own || !mount("hang_fs", point, "overlay", MS_NODEV, options), "overlay");
	need(!chdir("/"), "/");
	printf("server %d\nready\n", (int)server);
	fflush(stdout);
	if (argc > 4) {
		execv(argv[4], argv + 4);
		need(0, argv[4]);
	}
	for (;;)
		pause();
}
