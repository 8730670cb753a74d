package members

import (
	"encoding/json"
	"fmt"
)

// The versions of the protocol between nodes that this program speaks.
const (
	MinProtocol = 1
	MaxProtocol = 1
)

// meta is what a node tells all others about itself, at most 512 bytes of it.
type meta struct {
	ID          string `json:"i"`
	Boot        uint64 `json:"b"`
	State       State  `json:"s"`
	Peer        string `json:"p"`
	Cluster     string `json:"c"`
	Fingerprint uint64 `json:"f"`
	MinProtocol int    `json:"v"`
	MaxProtocol int    `json:"w"`
}

func (m meta) encode(limit int) ([]byte, error) {
	data, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode node metadata: %w", err)
	}
	if len(data) > limit {
		return nil, fmt.Errorf("encode node metadata: id, cluster name and address take %d bytes together, at most %d fit", len(data), limit)
	}
	return data, nil
}

func decodeMeta(data []byte) (meta, error) {
	var m meta
	if err := json.Unmarshal(data, &m); err != nil {
		return meta{}, fmt.Errorf("decode node metadata: %w", err)
	}
	if m.ID == "" || m.Boot == 0 || m.State < Joining || m.State > Leaving {
		return meta{}, fmt.Errorf("decode node metadata: id, boot or state is missing")
	}
	return m, nil
}

// A RefusedError says why two nodes cannot be in one cluster.
type RefusedError struct {
	ID, Peer string // the other node
	Reason   string
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("cannot be in one cluster with node %q at %s: %s", e.ID, e.Peer, e.Reason)
}

// refuse returns why two nodes cannot be in one cluster, or nil.
func (m meta) refuse(other meta) *RefusedError {
	reason := ""
	switch {
	case other.Cluster != m.Cluster:
		reason = fmt.Sprintf("its --cluster is %q, this node's is %q", other.Cluster, m.Cluster)
	case other.MaxProtocol < m.MinProtocol || other.MinProtocol > m.MaxProtocol:
		reason = fmt.Sprintf("it speaks versions %d to %d of the protocol between nodes, this node %d to %d",
			other.MinProtocol, other.MaxProtocol, m.MinProtocol, m.MaxProtocol)
	case other.Fingerprint != m.Fingerprint:
		reason = fmt.Sprintf("it places keys in another way (fingerprint %x, this node's is %x): run the same version on both", other.Fingerprint, m.Fingerprint)
	default:
		return nil
	}
	return &RefusedError{ID: other.ID, Peer: other.Peer, Reason: reason}
}
