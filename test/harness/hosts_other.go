//go:build !linux

package harness

import "errors"

const canEnter = false

func (*host) enter(func()) error { return errors.New("enter host: only Linux has network namespaces") }
