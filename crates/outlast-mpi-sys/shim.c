/* The part of MPI that Outlast calls, for src/lib.rs. Predefined handles are macros in mpi.h, and
 * constants differ between implementations, so Rust cannot call MPI without these lines of C. Every
 * function returns MPI's code, results go through pointers, and handles are passed as the pointers
 * that they are in Open MPI. */

#define _DEFAULT_SOURCE 1 /* for on_exit */
#include <mpi.h>
#include <mpi-ext.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#if !defined(OPEN_MPI) || !defined(OMPI_HAVE_MPI_EXT_FTMPI) || !OMPI_HAVE_MPI_EXT_FTMPI
#error "Outlast needs Open MPI 5 with ULFM; type: cargo xtask mpi"
#endif
_Static_assert(OMPI_MAJOR_VERSION >= 5, "Outlast needs Open MPI 5 or later");
_Static_assert(MPIX_ERR_PROC_FAILED == 75, "the class is named in lib.rs");
_Static_assert(MPIX_ERR_PROC_FAILED_PENDING == 76, "the class is named in lib.rs");
_Static_assert(MPIX_ERR_REVOKED == 77, "the class is named in lib.rs");
_Static_assert(sizeof(MPI_Comm) == sizeof(void *), "handles are passed as pointers");
_Static_assert(sizeof(MPI_Request) == sizeof(void *), "handles are passed as pointers");
_Static_assert(sizeof(MPI_Win) == sizeof(void *), "handles are passed as pointers");

/* The number of the interface between this file and the crate: raised with each change of a
 * function here. INTERFACE in src/plugin.rs is equal. */
#define SHIM_INTERFACE 2

int outlast_mpi_interface(void) { return SHIM_INTERFACE; }

/* The version of the Open MPI that the shim was compiled with, and what the library says that it
 * calls. */
int outlast_mpi_versions(int *major, int *minor, char *library, int room) {
    char text[MPI_MAX_LIBRARY_VERSION_STRING + 1] = "";
    int len = 0;
    int code = MPI_Get_library_version(text, &len);
    *major = OMPI_MAJOR_VERSION;
    *minor = OMPI_MINOR_VERSION;
    snprintf(library, (size_t)room, "%s", text);
    return code;
}

/* Initializes MPI, unless the program has done so: then `is_ours` becomes 0. */
int outlast_mpi_init(int *provided, int *is_ours) {
    int is_initialized = 0;
    int code = MPI_Initialized(&is_initialized);
    if (code != MPI_SUCCESS)
        return code;
    *is_ours = !is_initialized;
    if (is_initialized)
        return MPI_Query_thread(provided);
    code = MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, provided);
    return code;
}

int outlast_mpi_thread_multiple(void) { return MPI_THREAD_MULTIPLE; }

MPI_Request outlast_mpi_request_null(void) { return MPI_REQUEST_NULL; }

/* Whether the job was started with ULFM in force. */
int outlast_mpi_has_ulfm(int *has_ulfm) {
    int *value = NULL;
    int is_set = 0;
    int code = MPI_Comm_get_attr(MPI_COMM_WORLD, MPIX_FT, &value, &is_set);
    *has_ulfm = code == MPI_SUCCESS && is_set && *value;
    return code;
}

MPI_Comm outlast_mpi_world(void) { return MPI_COMM_WORLD; }

/* Begins to duplicate a communicator. `comm` is valid once `request` is complete, and must not move
 * until then. */
int outlast_mpi_dup(MPI_Comm parent, MPI_Comm *comm, MPI_Request *request) {
    return MPI_Comm_idup(parent, comm, request);
}

/* Makes a communicator of the living ranks. Waits for all of them. */
int outlast_mpi_shrink(MPI_Comm comm, MPI_Comm *shrunken) {
    return MPIX_Comm_shrink(comm, shrunken);
}

/* Begins to gather words from all ranks. Both buffers stay in place until `request` is complete. */
int outlast_mpi_gather(const uint64_t *mine, uint64_t *all, int words, MPI_Comm comm,
                       MPI_Request *request) {
    return MPI_Iallgather(mine, words, MPI_UINT64_T, all, words, MPI_UINT64_T, comm, request);
}

/* Whether errors on the world end the process, as they do unless the program says otherwise. */
int outlast_mpi_world_is_fatal(int *is_fatal) {
    MPI_Errhandler handler = MPI_ERRHANDLER_NULL;
    int code = MPI_Comm_get_errhandler(MPI_COMM_WORLD, &handler);
    if (code != MPI_SUCCESS)
        return code;
    *is_fatal = handler == MPI_ERRORS_ARE_FATAL || handler == MPI_ERRORS_ABORT;
    return MPI_Errhandler_free(&handler);
}

/* Makes errors return that belong to the world, or to no communicator. */
int outlast_mpi_set_errhandlers(void) {
    int code = MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    return code != MPI_SUCCESS ? code : MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
}

int outlast_mpi_errors_return(MPI_Comm comm) {
    return MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
}

int outlast_mpi_rank_and_size(MPI_Comm comm, int *rank, int *size) {
    int code = MPI_Comm_rank(comm, rank);
    return code != MPI_SUCCESS ? code : MPI_Comm_size(comm, size);
}

int outlast_mpi_isend(const void *bytes, int len, int to, int tag, MPI_Comm comm,
                      MPI_Request *request) {
    return MPI_Isend(bytes, len, MPI_BYTE, to, tag, comm, request);
}

int outlast_mpi_irecv(void *bytes, int len, int from, int tag, MPI_Comm comm,
                      MPI_Request *request) {
    return MPI_Irecv(bytes, len, MPI_BYTE, from, tag, comm, request);
}

/* Finds the complete requests: for each its index, its own code and the bytes received. MPI neither
 * frees a request that ended with an error nor reports it again: its entry is set to null here, so
 * that no later call tests it. `statuses` has room for `count`. */
int outlast_mpi_test_some(int count, MPI_Request *requests, int *done, int *indices, int *codes,
                          int *lens, MPI_Status *statuses) {
    int code = MPI_Testsome(count, requests, done, indices, statuses);
    /* MPI_Testsome tests first and moves data afterwards: only a second call reports that data. */
    if (code == MPI_SUCCESS && *done == 0)
        code = MPI_Testsome(count, requests, done, indices, statuses);
    if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS) {
        *done = 0;
        return code;
    }
    if (*done == MPI_UNDEFINED)
        *done = 0;
    for (int i = 0; i < *done; i++) {
        codes[i] = code == MPI_SUCCESS ? MPI_SUCCESS : statuses[i].MPI_ERROR;
        lens[i] = 0;
        if (codes[i] == MPI_SUCCESS)
            MPI_Get_count(&statuses[i], MPI_BYTE, &lens[i]);
        else
            requests[indices[i]] = MPI_REQUEST_NULL;
    }
    return MPI_SUCCESS;
}

size_t outlast_mpi_status_size(void) { return sizeof(MPI_Status); }

int outlast_mpi_test(MPI_Request *request, int *is_done) {
    return MPI_Test(request, is_done, MPI_STATUS_IGNORE);
}

/* Cancels a receive. MPI may use its buffer until a test finds the request complete. */
int outlast_mpi_cancel(MPI_Request *request) { return MPI_Cancel(request); }

/* Finds the failed ranks of `comm`, at most `room`. A local call that acknowledges no failure. */
int outlast_mpi_get_failed(MPI_Comm comm, int *ranks, int room, int *count) {
    MPI_Group failed = MPI_GROUP_NULL, all = MPI_GROUP_NULL;
    *count = 0;
    int code = MPIX_Comm_get_failed(comm, &failed);
    if (code != MPI_SUCCESS)
        return code;
    int size = 0;
    code = MPI_Group_size(failed, &size);
    if (code == MPI_SUCCESS && size > 0) {
        if (size > room)
            size = room;
        int *positions = malloc((size_t)size * sizeof *positions);
        if (positions == NULL) {
            code = MPI_ERR_NO_MEM;
        } else {
            for (int i = 0; i < size; i++)
                positions[i] = i;
            code = MPI_Comm_group(comm, &all);
            if (code == MPI_SUCCESS) {
                code = MPI_Group_translate_ranks(failed, size, positions, all, ranks);
                MPI_Group_free(&all);
            }
            free(positions);
        }
    }
    /* MPI_GROUP_EMPTY may be freed as well: the call only returns the handle. */
    MPI_Group_free(&failed);
    if (code == MPI_SUCCESS)
        *count = size;
    return code;
}

/* Counts the failed ranks of `comm`. A local call. It acknowledges the failures, which matters only
 * to receives from any source, and takes constant time while there is no new failure in the job. */
int outlast_mpi_count_failed(MPI_Comm comm, int *count) {
    int size = 0;
    int code = MPI_Comm_size(comm, &size);
    return code != MPI_SUCCESS ? code : MPIX_Comm_ack_failed(comm, size, count);
}

/* Makes a window over this process's memory, in bytes, with errors that return. All ranks call it
 * and wait for each other. The info key promises that words are changed by compare-and-swap alone,
 * a single word at a time. Without it each swap between hosts would lock its target. */
int outlast_mpi_win_create(void *base, size_t len, MPI_Comm comm, MPI_Win *win) {
    MPI_Info info = MPI_INFO_NULL;
    int code = MPI_Info_create(&info);
    if (code != MPI_SUCCESS)
        return code;
    code = MPI_Info_set(info, "acc_single_intrinsic", "true");
    if (code == MPI_SUCCESS)
        code = MPI_Win_create(base, (MPI_Aint)len, 1, info, comm, win);
    MPI_Info_free(&info);
    return code != MPI_SUCCESS ? code : MPI_Win_set_errhandler(*win, MPI_ERRORS_RETURN);
}

/* Begins the access to a target, for ever. Waits for the target. */
int outlast_mpi_win_lock(int target, MPI_Win win) {
    return MPI_Win_lock(MPI_LOCK_SHARED, target, 0, win);
}

int outlast_mpi_rput(const void *bytes, int len, int target, uint64_t at, MPI_Win win,
                     MPI_Request *request) {
    return MPI_Rput(bytes, len, MPI_BYTE, target, (MPI_Aint)at, len, MPI_BYTE, win, request);
}

int outlast_mpi_rget(void *bytes, int len, int target, uint64_t at, MPI_Win win,
                     MPI_Request *request) {
    return MPI_Rget(bytes, len, MPI_BYTE, target, (MPI_Aint)at, len, MPI_BYTE, win, request);
}

/* Swaps a word, and waits for the target: compare-and-swap has no form with a request. `words` are
 * the expected, the new and the found word. */
int outlast_mpi_swap(uint64_t *words, int target, uint64_t at, MPI_Win win) {
    int code = MPI_Compare_and_swap(&words[1], &words[0], &words[2], MPI_UINT64_T, target,
                                    (MPI_Aint)at, win);
    return code != MPI_SUCCESS ? code : MPI_Win_flush(target, win);
}

int outlast_mpi_error_class(int code) {
    int class = code;
    return MPI_Error_class(code, &class) == MPI_SUCCESS ? class : code;
}

/* Writes the text of a code into a buffer of MPI_MAX_ERROR_STRING bytes, and returns its length. */
int outlast_mpi_error_text(int code, char *text) {
    int len = 0;
    return MPI_Error_string(code, text, &len) == MPI_SUCCESS ? len : 0;
}

int outlast_mpi_error_text_max(void) { return MPI_MAX_ERROR_STRING; }

static const volatile int *outlast_has_left;
static pid_t outlast_member_pid;
static int outlast_rank, outlast_report = -1;

/* The launcher reports a death by signal and an exit with status 0 to the other ranks, but no exit
 * with another status: then it lets them wait, and ends the whole job about a second later. So an
 * exit with another status, or without leaving, is made a death by signal. */
static void outlast_at_exit(int status, void *context) {
    (void)context;
    if (getpid() != outlast_member_pid)
        return; /* A forked child is no member, and may end in any way. */
    if (outlast_report >= 0)
        dprintf(outlast_report, "%d exited %d\n", outlast_rank, status);
    int is_finalized = 0;
    if (MPI_Finalized(&is_finalized) == MPI_SUCCESS && is_finalized)
        return; /* The program has ended MPI itself: the launcher accepts any status from now on. */
    if (status != 0 || !*outlast_has_left) {
        fflush(NULL);
        kill(getpid(), SIGKILL);
    }
}

/* Makes an exit of this process a death by signal, if its status is not 0 or `*has_left` is 0. If
 * `report` names a file, a line for the joining and later a line with the status of the exit are
 * written there: otherwise the status would be lost. */
int outlast_mpi_die_on_exit(const volatile int *has_left, int rank, const char *report) {
    outlast_has_left = has_left;
    outlast_rank = rank;
    if (report != NULL)
        outlast_report = open(report, O_WRONLY | O_APPEND | O_CLOEXEC | O_NONBLOCK);
    if (outlast_report >= 0)
        dprintf(outlast_report, "%d joined\n", rank);
    outlast_member_pid = getpid();
    return on_exit(outlast_at_exit, NULL) == 0 ? MPI_SUCCESS : MPI_ERR_NO_MEM;
}
