//go:build unix && !linux

package main

import "syscall"

// childAttr keeps the Ctrl-C of a terminal from a child: the parent passes on what it
// gets. Only Linux can have a child die with its parent.
func childAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
