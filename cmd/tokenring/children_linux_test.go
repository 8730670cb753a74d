package main

import "testing"

// However the command ends, its nodes end with it.
func TestClusterDoesNotLeaveNodesBehind(t *testing.T) {
	local := freeCluster(t, 3)
	cmd, log := startParent(t, local, "well")
	<-log.await(lastWords)
	held := hold(t, local)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // says that it was killed
	awaitEnd(t, held)
}
