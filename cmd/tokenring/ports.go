package main

import (
	"errors"
	"fmt"
	"net"
)

// ports are the listeners of a node, but for gossip, which memberlist opens itself. They
// are all opened before anything runs, so that a busy port ends the start at once.
type ports struct {
	http, grpc, admin, metrics, peer net.Listener // metrics is nil when off
}

func listen(s Settings) (*ports, error) {
	p := &ports{}
	for _, l := range []struct {
		flag, addr string
		to         *net.Listener
	}{
		{"--http", s.HTTP, &p.http}, {"--grpc", s.GRPC, &p.grpc}, {"--admin", s.Admin, &p.admin},
		{"--metrics", s.Metrics, &p.metrics}, {"--peer", s.Peer, &p.peer},
	} {
		if l.addr == "" {
			continue
		}
		var err error
		if *l.to, err = net.Listen("tcp", l.addr); err != nil {
			return nil, errors.Join(fmt.Errorf("%s %s: %w", l.flag, l.addr, err), p.close())
		}
	}
	return p, nil
}

func (p *ports) close() error {
	var errs []error
	for _, l := range []net.Listener{p.http, p.grpc, p.admin, p.metrics, p.peer} {
		if l != nil {
			errs = append(errs, l.Close())
		}
	}
	return errors.Join(errs...)
}
