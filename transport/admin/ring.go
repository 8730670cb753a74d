package admin

import "github.com/tokenring/tokenring/node/keeper"

// A ringList is what one node knows of all partitions.
type ringList struct {
	Node       string      `json:"node"`
	Ready      bool        `json:"ready"`
	NotReady   string      `json:"not_ready,omitempty"` // why
	Partitions []partition `json:"partitions"`
}

type partition struct {
	Partition int    `json:"partition"`
	Owner     string `json:"owner"`  // where placement puts it
	Holder    string `json:"holder"` // who decides, "" if nobody that this node knows of
	Epoch     uint64 `json:"epoch"`  // number of the time of holding
	Role      string `json:"role"`   // of this node: none, claiming, holding, frozen or paused
	Heir      string `json:"heir"`   // who is to have a copy; of partitions that this node holds
	Copied    bool   `json:"copied"` // that copy is complete
	Copy      string `json:"copy"`   // that lies here: none, partial or complete
	Buckets   int    `json:"buckets"`
}

func showRing(c Config) ringList {
	reason := c.Ring.NotReady()
	r := ringList{Node: c.Cluster.View().Self().ID, Ready: reason == "", NotReady: reason, Partitions: []partition{}}
	for i, p := range c.Ring.Places() {
		r.Partitions = append(r.Partitions, partition{
			Partition: i, Owner: p.Owner, Holder: p.Holder, Epoch: p.Epoch.Counter, Role: p.Role.String(),
			Heir: p.Heir, Copied: p.Copied, Copy: copyOf(p), Buckets: p.Buckets,
		})
	}
	return r
}

func copyOf(p keeper.Place) string {
	switch {
	case p.Complete:
		return "complete"
	case p.Copy:
		return "partial"
	}
	return "none"
}
