// SPDX-License-Identifier: BSD-4-Clause

// Package front holds what the inference front knows about the protocols that it serves, apart from HTTP: the table of
// what a request may hold (rules.json, from which docs/front.md is made too), the walk of a request's body by that
// table, the reading of usage out of answers, and the counting of limits.
//
// The rule for a body: what passes is read in one way by everybody. So a body that two JSON readers could read
// differently is refused, whatever it asks for; and where a field decides what is done, only the fields, values and
// types of the table pass. What the agent says to its model (texts, images, tools of its own, their inputs and
// results) is checked for form alone.
package front
