package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"
)

// ringAnswer is the answer of /v1/ring.
type ringAnswer struct {
	Node       string
	Ready      bool
	NotReady   string `json:"not_ready"`
	Partitions []ringPartition
}

type ringPartition struct {
	Partition                       int
	Owner, Holder, Role, Heir, Copy string
	Epoch                           uint64
	Copied                          bool
	Buckets                         int
}

func newRing() *cobra.Command {
	var each bool
	c := newLook("ring", "Show which node holds how many partitions, and where their copies are",
		func(ctx context.Context, stdout io.Writer, addr string, out output) error {
			return showRing(ctx, stdout, addr, out, each)
		})
	c.Flags().BoolVar(&each, "partitions", false, "show each partition on a line of its own")
	return c
}

func showRing(ctx context.Context, stdout io.Writer, addr string, out output, each bool) error {
	status, answer, err := ask(ctx, addr, "/v1/ring", nil)
	if err != nil {
		return err
	}
	var ring ringAnswer
	if status != http.StatusOK || json.Unmarshal(answer, &ring) != nil || ring.Partitions == nil {
		return refusal(addr, status, answer)
	}
	if out.json {
		_, err = fmt.Fprintf(stdout, "%s\n", answer)
		return err
	}
	table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	if each {
		ring.list(table)
	} else {
		ring.summarize(table)
	}
	return table.Flush()
}

func (r *ringAnswer) list(to io.Writer) {
	fmt.Fprintln(to, "PARTITION\tOWNER\tHOLDER\tEPOCH\tROLE\tHEIR\tCOPIED\tCOPY\tBUCKETS")
	for _, p := range r.Partitions {
		fmt.Fprintf(to, "%d\t%s\t%s\t%d\t%s\t%s\t%t\t%s\t%d\n", p.Partition, p.Owner, p.Holder, p.Epoch, p.Role, p.Heir, p.Copied, p.Copy, p.Buckets)
	}
}

// summarize tells first how the asked node is, then what it knows of all.
func (r *ringAnswer) summarize(to io.Writer) {
	if r.Ready {
		fmt.Fprintf(to, "%s is ready\n", r.Node)
	} else {
		fmt.Fprintf(to, "%s is not ready: %s\n", r.Node, r.NotReady)
	}
	if len(r.Partitions) == 0 {
		fmt.Fprintln(to, "Redis decides: no node holds a partition")
		return
	}
	roles, copies := map[string]int{}, map[string]int{}
	placed, holds := map[string]int{}, map[string]int{}
	copied, held, lying := 0, 0, 0
	for _, p := range r.Partitions {
		roles[p.Role]++
		placed[p.Owner]++
		holds[p.Holder]++
		if p.Role == "holding" || p.Role == "frozen" || p.Role == "paused" {
			held += p.Buckets
		} else {
			copies[p.Copy]++
			lying += p.Buckets
		}
		if p.Copied {
			copied++
		}
	}
	fmt.Fprintf(to, "  holding %d partitions with %d buckets, %d copied to their heir\n", roles["holding"], held, copied)
	fmt.Fprintf(to, "  copies of %d partitions with %d buckets, and %d incomplete\n", copies["complete"], lying, copies["partial"])
	fmt.Fprintf(to, "  claiming %d, frozen %d, paused %d\n\n", roles["claiming"], roles["frozen"], roles["paused"])
	fmt.Fprintln(to, "ID\tPLACED\tHOLDS")
	ids := map[string]int{}
	maps.Copy(ids, placed)
	maps.Copy(ids, holds)
	for _, id := range slices.Sorted(maps.Keys(ids)) {
		if id != "" {
			fmt.Fprintf(to, "%s\t%d\t%d\n", id, placed[id], holds[id])
		}
	}
	if nobody := holds[""]; nobody > 0 {
		fmt.Fprintf(to, "(nobody)\t%d\t%d\n", placed[""], nobody)
	}
}
