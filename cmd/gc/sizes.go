package main

import (
	"github.com/flexlvm/flexlvm/internal/nfsquota"
	"github.com/flexlvm/flexlvm/internal/nodeagent"
)

// sizeKeeper returns the enforcer of sizes for the directories of these exports; nil if there are no exports.
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
