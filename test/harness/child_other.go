//go:build !linux

package harness

import "syscall"

func childAttr() *syscall.SysProcAttr { return nil }
