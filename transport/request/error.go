package request

import (
	"errors"
	"fmt"

	"github.com/tokenring/tokenring/node"
)

// A Code tells programs what is wrong with a request.
type Code string

// The codes. The first three concern a check, the others a request over HTTP.
const (
	InvalidArgument      Code = "invalid_argument"
	PermissionDenied     Code = "permission_denied"
	UnknownLimit         Code = "unknown_limit"
	NotFound             Code = "not_found"
	MethodNotAllowed     Code = "method_not_allowed"
	BodyTooLarge         Code = "body_too_large"
	UnsupportedMediaType Code = "unsupported_media_type"
)

// An Error is the client's own mistake.
type Error struct {
	Code    Code
	Message string // for people
}

func (e *Error) Error() string { return e.Message }

// Invalid returns an error with the code InvalidArgument.
func Invalid(format string, args ...any) *Error {
	return &Error{InvalidArgument, fmt.Sprintf(format, args...)}
}

// AsError returns what the client is told about the error of a check.
func AsError(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	if _, ok := errors.AsType[*node.UnknownLimitError](err); ok {
		return &Error{UnknownLimit, err.Error()}
	}
	return &Error{InvalidArgument, err.Error()}
}
