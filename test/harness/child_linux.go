package harness

import "syscall"

// childAttr makes a child end with the test, however that ends.
func childAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
