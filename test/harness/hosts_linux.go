package harness

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

const canEnter = true

// enter runs f within the host: sockets that it opens and processes that it starts belong
// there.
func (h *host) enter(f func()) error {
	inside, err := os.Open("/var/run/netns/" + h.name)
	if err != nil {
		return fmt.Errorf("open host: %w", err)
	}
	defer inside.Close()
	runtime.LockOSThread()
	outside, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("open own host: %w", err)
	}
	defer outside.Close()
	if err := unix.Setns(int(inside.Fd()), unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter host: %w", err)
	}
	f()
	if err := unix.Setns(int(outside.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("leave host: %w", err) // the thread stays locked, so that nothing else runs there
	}
	runtime.UnlockOSThread()
	return nil
}
