package main

import "syscall"

// childAttr makes a child die with its parent, however that ends, and keeps the Ctrl-C of
// a terminal from it: the parent passes on what it gets.
func childAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
