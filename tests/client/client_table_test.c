/* SPDX-License-Identifier: Apache-2.0
 *
 * The table by which the library finds what a message belongs to.
 */
#include "client/table.h"
#include "tests/lib/suite.h"

struct object {
        struct table_node node;
        uint64_t number;
};

static struct object *find(const struct table *table, uint64_t number)
{
        return table_item(table_find(table, number), struct object, node);
}

TEST(each_of_many_objects_is_found_by_its_number)
{
        enum { OBJECTS = 10000 };
        static struct object objects[OBJECTS];
        static struct table table;
        ck_assert_ptr_null(find(&table, 1));
        for (uint64_t i = 0; i < OBJECTS; i++) {
                objects[i].number = i * (UINT64_C(1) << (i % 40));
                table_add(&table, &objects[i].node, objects[i].number);
        }
        ck_assert_uint_eq(table.n, OBJECTS);
        for (size_t i = 0; i < OBJECTS; i++)
                ck_assert_uint_eq(find(&table, objects[i].number)->number, objects[i].number);
        for (size_t i = 0; i < OBJECTS; i++) {
                table_remove(&table, &objects[i].node);
                table_remove(&table, &objects[i].node); /* it is in no table */
        }
        ck_assert_uint_eq(table.n, 0);
        ck_assert_ptr_null(find(&table, objects[1].number));
        table_deinit(&table);
}

TEST(all_objects_of_one_number_are_found)
{
        struct object objects[3] = {0};
        struct table table = {0};
        for (size_t i = 0; i < sizeof(objects) / sizeof(objects[0]); i++)
                table_add(&table, &objects[i].node, 7);
        table_remove(&table, &objects[1].node);
        struct table_node *first = table_find(&table, 7);
        ck_assert_ptr_eq(first, &objects[2].node);
        ck_assert_ptr_eq(table_next(first), &objects[0].node);
        ck_assert_ptr_null(table_next(&objects[0].node));
        table_deinit(&table);
}
