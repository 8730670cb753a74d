package grpcapi

import (
	"testing"

	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
)

const (
	serving    = healthv1.HealthCheckResponse_SERVING
	notServing = healthv1.HealthCheckResponse_NOT_SERVING
)

func TestHealth(t *testing.T) {
	s, conn := start(t, newLimiter())
	client := healthv1.NewHealthClient(conn)
	for _, name := range []string{"", "tokenring.v1.RateLimitService"} {
		s.SetReady(false)
		watch, err := client.Watch(within(t), &healthv1.HealthCheckRequest{Service: name})
		if err != nil {
			t.Fatal(err)
		}
		for _, ready := range []bool{false, true, false, true} {
			s.SetReady(ready)
			want := notServing
			if ready {
				want = serving
			}
			if got, err := watch.Recv(); err != nil || got.Status != want {
				t.Errorf("%q: watched %v, %v, want %v", name, got, err, want)
			}
			got, err := client.Check(within(t), &healthv1.HealthCheckRequest{Service: name})
			if err != nil || got.Status != want {
				t.Errorf("%q: %v, %v, want %v", name, got, err, want)
			}
		}
	}
	if _, err := client.Check(within(t), &healthv1.HealthCheckRequest{Service: "other"}); status.Code(err) != codes.NotFound {
		t.Errorf("health of another service: %v", err)
	}
}

func TestNotReadyAtFirst(t *testing.T) {
	_, conn := start(t, newLimiter())
	got, err := healthv1.NewHealthClient(conn).Check(within(t), &healthv1.HealthCheckRequest{})
	if err != nil || got.Status != notServing {
		t.Errorf("%v, %v", got, err)
	}
}

// Whoever watches the health does not hold up the end.
func TestCloseEndsWatches(t *testing.T) {
	s, conn := start(t, newLimiter())
	watch, err := healthv1.NewHealthClient(conn).Watch(within(t), &healthv1.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := watch.Recv(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(within(t)); err != nil {
		t.Error(err)
	}
	for err == nil {
		_, err = watch.Recv()
	}
	if status.Code(err) != codes.Canceled {
		t.Errorf("the watch ended with %v", err)
	}
	s.SetReady(true)
}

func TestReflection(t *testing.T) {
	_, conn := start(t, newLimiter())
	stream, err := reflectionv1.NewServerReflectionClient(conn).ServerReflectionInfo(within(t))
	if err != nil {
		t.Fatal(err)
	}
	err = stream.Send(&reflectionv1.ServerReflectionRequest{
		MessageRequest: &reflectionv1.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: "tokenring.v1.RateLimitService.CheckStream"},
	})
	if err != nil {
		t.Fatal(err)
	}
	got, err := stream.Recv()
	if err != nil || len(got.GetFileDescriptorResponse().GetFileDescriptorProto()) == 0 {
		t.Errorf("%v, %v", got, err)
	}
}
