package grpcapi

import (
	"context"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	tokenringv1 "github.com/tokenring/tokenring/proto/tokenring/v1"
	"github.com/tokenring/tokenring/transport/request"
)

// Incoming is read in place of its message. To the library a message that cannot be read
// is an internal error, which it has sent before anybody could say something else; here
// it is the client's mistake.
type incoming struct {
	message any
	err     error
}

// receive reads a message with recv, which is the library's way to do so.
func receive(recv func(any) error, message any) error {
	in := incoming{message: message}
	if err := recv(&in); err != nil {
		return err
	}
	if in.err != nil {
		return status.Error(codes.InvalidArgument, in.err.Error())
	}
	return nil
}

type codec struct{ encoding.CodecV2 }

func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	in, ok := v.(*incoming)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	in.err = c.unmarshal(data, in.message)
	return nil
}

// unmarshal refuses batches that are too long before it reads them: an empty check takes
// two bytes of a message, but a hundred in memory.
func (c codec) unmarshal(data mem.BufferSlice, v any) error {
	if _, ok := v.(*tokenringv1.CheckBatchRequest); ok && data.Len() > 2*request.MaxChecks {
		buffer := data.MaterializeToBuffer(mem.DefaultBufferPool())
		defer buffer.Free()
		if countFields(buffer.ReadOnlyData()) > request.MaxChecks {
			return request.Invalid("too many checks: want at most %d", request.MaxChecks)
		}
		data = mem.BufferSlice{buffer}
	}
	return c.CodecV2.Unmarshal(data, v)
}

// countFields counts the fields of an encoded message, up to one that cannot be read.
func countFields(b []byte) int {
	for count := 0; ; count++ {
		_, _, n := protowire.ConsumeField(b)
		if n <= 0 {
			return count
		}
		b = b[n:]
	}
}

// service describes the service such that its messages are read with receive.
func service() *grpc.ServiceDesc {
	desc := tokenringv1.RateLimitService_ServiceDesc
	desc.Methods = slices.Clone(desc.Methods)
	for i, m := range desc.Methods {
		desc.Methods[i].Handler = func(srv any, ctx context.Context, recv func(any) error, i grpc.UnaryServerInterceptor) (any, error) {
			return m.Handler(srv, ctx, func(v any) error { return receive(recv, v) }, i)
		}
	}
	return &desc
}
