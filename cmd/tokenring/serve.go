package main

import (
	"context"
	"errors"
	"io"
)

// serve runs one node until ctx ends.
func serve(context.Context, Settings, io.Writer) error {
	return errors.New("serve is not wired")
}
