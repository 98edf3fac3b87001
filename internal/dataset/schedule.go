package dataset

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	_ "time/tzdata" // the image has no time zone database

	"github.com/robfig/cron/v3"
)

// A schedule determines when a source is checked again.
type schedule interface {
	// Next returns the first time that is later than after.
	Next(after time.Time) time.Time
}

// every is a schedule of intervals.
type every time.Duration

// Next implements schedule.
func (e every) Next(after time.Time) time.Time { return after.Add(time.Duration(e)) }

// cronParser parses the schedules of CronJobs.
var cronParser = cron.NewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.Descriptor)

// parseSchedule parses the options refresh and refreshTimeZone; nil is never.
func parseSchedule(text, zone string) (schedule, error) {
	on, notBool := strconv.ParseBool(text)
	interval, notInterval := time.ParseDuration(text)
	byClock := text != "" && notBool != nil && notInterval != nil
	if zone != "" && !byClock {
		return nil, fmt.Errorf("refreshTimeZone %q with refresh %q: only a schedule by the clock has a time zone, such as refresh \"30 3 * * *\"; leave refreshTimeZone out", zone, text)
	}
	switch {
	case text == "", notBool == nil && !on:
		return nil, nil
	case notBool == nil:
		return every(defaultRefresh), nil
	case byClock:
		return parseClock(text, zone)
	case interval < time.Second:
		return nil, fmt.Errorf("refresh %q has to be not less than 1s", text)
	}
	return every(interval), nil
}

// parseClock parses a cron schedule in a time zone; an empty zone is UTC.
func parseClock(text, zone string) (schedule, error) {
	location, err := time.LoadLocation(zone)
	if err != nil || zone == "Local" {
		return nil, fmt.Errorf("refreshTimeZone %q is not known; write a name of the IANA database, such as Europe/Berlin", zone)
	}
	// The parser accepts a zone here, too, and panics on one without a space after it.
	if strings.Contains(text, "TZ=") {
		return nil, fmt.Errorf("refresh %q has a time zone; write that in refreshTimeZone", text)
	}
	parsed, err := cronParser.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("refresh %q has to be true, how often, such as 10m, or the five fields of a cron schedule, such as \"30 3 * * 1-5\": %w", text, err)
	}
	spec, is := parsed.(*cron.SpecSchedule)
	if !is {
		return nil, fmt.Errorf("refresh %q is an interval; write it alone, such as 1h", text)
	}
	spec.Location = location
	if spec.Next(time.Unix(0, 0)).IsZero() {
		return nil, fmt.Errorf("refresh %q names a time that never comes", text)
	}
	return spec, nil
}
