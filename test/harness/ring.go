package harness

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/tokenring/tokenring/test/wait"
)

// Partition is what a node says of one partition.
type Partition struct {
	Partition int    `json:"partition"`
	Owner     string `json:"owner"`
	Holder    string `json:"holder"`
	Epoch     uint64 `json:"epoch"`
	Role      string `json:"role"`
	Heir      string `json:"heir"`
	Copied    bool   `json:"copied"`
	Copy      string `json:"copy"`
	Buckets   int    `json:"buckets"`
}

// Ring returns what the node says of all partitions, nil if it does not answer.
func (n *Node) Ring() []Partition {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	reply, err := Do(ctx, http.MethodGet, "http://"+n.Admin+"/v1/ring", nil, nil)
	if err != nil || reply.Status != http.StatusOK {
		return nil
	}
	var list struct{ Partitions []Partition }
	if json.Unmarshal(reply.Body, &list) != nil {
		return nil
	}
	return list.Partitions
}

// Unsettled returns "" if each partition is held by exactly one running node, the one that
// placement names, and that node's copy at the heir is complete if there is to be one. Else
// it says what is not so.
func (c *Cluster) Unsettled(copied bool) string {
	holders := map[int]string{}
	partitions := 0
	for _, n := range c.Nodes() {
		if !n.Running() {
			continue
		}
		ring := n.Ring()
		if ring == nil {
			return n.ID + " does not answer"
		}
		partitions = len(ring)
		for _, p := range ring {
			switch {
			case p.Role == "none":
				continue
			case p.Role != "holding":
				return fmt.Sprintf("partition %d is %s at %s", p.Partition, p.Role, n.ID)
			case holders[p.Partition] != "":
				return fmt.Sprintf("partition %d is held by %s and %s", p.Partition, holders[p.Partition], n.ID)
			case p.Owner != n.ID:
				return fmt.Sprintf("partition %d is held by %s and belongs to %s", p.Partition, n.ID, p.Owner)
			case copied && !p.Copied:
				return fmt.Sprintf("partition %d of %s has no complete copy at %q", p.Partition, n.ID, p.Heir)
			}
			holders[p.Partition] = n.ID
		}
	}
	if len(holders) != partitions {
		return fmt.Sprintf("%d of %d partitions are held", len(holders), partitions)
	}
	return ""
}

// WaitSettled waits until the cluster is ready and has one holder for each partition, with
// a complete copy if asked for.
func (c *Cluster) WaitSettled(copied bool) {
	c.tb.Helper()
	c.WaitReady()
	last := ""
	if err := wait.Until(Slow, func() bool { last = c.Unsettled(copied); return last == "" }); err != nil {
		c.tb.Fatalf("the cluster has not settled within %v: %s", Slow, last)
	}
}
