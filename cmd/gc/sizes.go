package main

import (
	"github.com/flexlvm/flexlvm/internal/nfsquota"
	"github.com/flexlvm/flexlvm/internal/nodeagent"
)

// sizeKeeper returns what holds the directories of these exports to their sizes; nil if there are none.
func sizeKeeper(exports []string) (nodeagent.SizeKeeper, error) {
	if len(exports) == 0 {
		return nil, nil
	}
	k, err := nfsquota.New(exports)
	if err != nil {
		return nil, err
	}
	return k, nil
}
