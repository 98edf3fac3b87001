package main

import (
	"github.com/flexlvm/flexlvm/internal/nfsquota"
	"github.com/flexlvm/flexlvm/internal/nodeagent"
)

// sizeEnforcer returns the enforcer of sizes for the directories of these exports; nil if there are no exports.
func sizeEnforcer(exports []string) (nodeagent.SizeEnforcer, error) {
	if len(exports) == 0 {
		return nil, nil
	}
	k, err := nfsquota.New(exports)
	if err != nil {
		return nil, err
	}
	return k, nil
}
