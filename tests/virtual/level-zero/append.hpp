/* Appending to command lists: what all commands have in common. */
#ifndef VZE_APPEND_HPP
#define VZE_APPEND_HPP

#include "objects.hpp"

namespace vze {

/* The events of one append call. */
struct Events {
	ze_event_handle_t signal;
	uint32_t waits;
	ze_event_handle_t *wait;
};

/* Adds a command to a list, or submits it when the list is immediate; waits for
 * its end when the list is synchronous. */
ze_result_t append(Call &call, ze_command_list_handle_t hList, Command command, Events events);

/* Submits a list's commands to a stream. The first waits for all that the
 * stream got before. */
void submit_list(Call &call, CommandList &list, Stream &stream, bool in_order);

/* Everything submitted to the stream so far is done; false after the timeout. */
bool wait_stream(Stream &stream, uint64_t timeout);

} // namespace vze

#endif
